"""Records what runners report, and reads it for users."""
