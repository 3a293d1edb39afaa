from __future__ import annotations

import os
from pathlib import Path

import pytest

from delegate.config.settings import Settings
from delegate.runner.secrets.sources import Secrets, known_secrets, looks_secret

VALUE = "Zq7-vX2_mN9.kL4"


def known(home: Path, **environ: str) -> dict[str, bytes]:
    return known_secrets(Settings(home=home / ".delegate"), environ)


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "OPENAI_API_KEY",
        "PGPASSWORD",
        "db_passwd",
        "SIGNING_KEY",
        "MY_APIKEY",
        "SSH_KEY_PASSPHRASE",
        "GH_PAT",
        "SENTRY_DSN",
        "SESSION_COOKIE",
        "BASIC_AUTH",
        "DELEGATE_SECRET_KEY",
    ],
)
def test_variables_with_the_name_of_a_secret_are_secrets(tmp_path: Path, name: str) -> None:
    assert known(tmp_path, **{name: VALUE}) == {name: VALUE.encode()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/usr/bin:/bin:/usr/local/bin"),
        ("PWD", "/home/somebody/a-project"),
        ("KEYBOARD", "pc105-de-nodeadkeys"),
        ("MONKEY", VALUE),
        ("AUTH_METHOD", "password"),
        ("PGPASSWORD", "postgres"),
        ("MAX_TOKENS", "1000000000000"),
        ("TOKEN_URL", "https://login.example.test/oauth/token"),
        ("API_KEY", "short"),
        ("API_KEY", ""),
        ("XAUTHORITY", os.devnull),
    ],
)
def test_what_is_not_a_secret_is_left_in_the_output(tmp_path: Path, name: str, value: str) -> None:
    assert known(tmp_path, **{name: value}) == {}


RANDOM = "9fK2pXw7Qd4ZtB6mRs8V"
PLAIN = "keycloak-v26"
SECRET_VARIABLES = [
    "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ARM_CLIENT_SECRET", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_DEVOPS_EXT_PAT", "BASIC_AUTH", "BUILDKITE_AGENT_TOKEN",
    "CI_JOB_TOKEN", "CI_REGISTRY_PASSWORD", "CIRCLE_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLOUDFLARE_API_TOKEN",
    "CODEX_API_KEY", "CONSUL_HTTP_TOKEN", "DD_API_KEY", "DD_APP_KEY", "DISCORD_TOKEN", "DJANGO_SECRET_KEY",
    "DOCKER_AUTH_CONFIG", "DOCKER_PASSWORD", "ENCRYPTION_KEY", "FLY_API_TOKEN", "GEMINI_API_KEY", "GH_PAT",
    "GH_TOKEN", "GITHUB_TOKEN", "GITLAB_TOKEN", "HEROKU_API_KEY", "HF_TOKEN", "HTTP_AUTHORIZATION", "JIRA_API_TOKEN",
    "JWT_SECRET", "LINEAR_API_KEY", "MYSQL_PWD", "MYSQL_ROOT_PASSWORD", "NETLIFY_AUTH_TOKEN", "NPM_TOKEN",
    "OPENAI_API_KEY", "PGPASSWORD", "POSTGRES_PASSWORD", "RABBITMQ_DEFAULT_PASS", "RAILS_MASTER_KEY",
    "REDIS_PASSWORD", "SECRET_KEY_BASE", "SENTRY_AUTH_TOKEN", "SESSION_COOKIE", "SLACK_BOT_TOKEN",
    "SLACK_SIGNING_SECRET", "STRIPE_SECRET_KEY", "TF_TOKEN_app_terraform_io", "TWILIO_AUTH_TOKEN", "TWINE_PASSWORD",
    "VAULT_TOKEN", "VERCEL_TOKEN", "accessToken",
]  # fmt: skip
NAMES_BY_VALUE = [
    "AUTH_DOMAIN", "AUTH_METHOD", "AUTH_MODE", "AUTH_PROVIDER", "AUTH_REALM", "AUTH_TYPE", "BASIC_AUTH_REALM",
    "COOKIE_DOMAIN", "COOKIE_NAME", "CREDENTIAL_HELPER", "GIT_CREDENTIAL_HELPER", "OAUTH_PROVIDER",
    "SESSION_COOKIE_NAME", "VITE_AUTH_BACKEND",
]  # fmt: skip
OTHER_VARIABLES = [
    "AUTHOR", "AUTHORS", "AUTHORITY", "AUTHENTICATION_BACKEND", "BYPASS_CACHE", "CI_COMMIT_AUTHOR", "COMPASS_VERSION",
    "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GITHUB_ACTOR", "GITHUB_REPOSITORY", "GITHUB_SHA",
    "HOSTNAME", "KEYBOARD", "KEYCLOAK_REALM", "KEYMAP", "MONKEY_PATCH", "OLDPWD", "PASSENGER_APP_ENV", "PATTERN",
    "PWD", "SECRETARY_NAME", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM", "TURKEY_REGION", "XAUTHORITY",
    "XDG_SESSION_ID",
]  # fmt: skip


def test_a_hundred_names_of_variables_are_judged_by_their_words(tmp_path: Path) -> None:
    everything = {*SECRET_VARIABLES, *NAMES_BY_VALUE, *OTHER_VARIABLES}
    assert len(everything) == 100

    secret = {name for name in everything if known(tmp_path, **{name: RANDOM})}
    secret_although_plain = {name for name in everything if known(tmp_path, **{name: PLAIN})}

    judged_by_value = {*NAMES_BY_VALUE, "AZURE_DEVOPS_EXT_PAT", "BASIC_AUTH", "DOCKER_AUTH_CONFIG", "GH_PAT"}
    judged_by_value |= {"HTTP_AUTHORIZATION", "SESSION_COOKIE"}
    assert secret == {*SECRET_VARIABLES, *NAMES_BY_VALUE}
    assert secret_although_plain == secret - judged_by_value


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        ("keycloak-v26", False),
        ("oauth2-proxy-7.6", False),
        ("my-app-session-v2", False),
        ("sha256WithRSAEncryption", False),
        ("corp-eu1.example.org", False),
        ("AES-256-GCM", False),
        ("osxkeychain", False),
        ("/run/secrets/nothing-there", False),
        ("admin:hunter22", True),
        ("Tr0ub4dor&3", True),
        ("6ba7b810-9dad-11d1-80b4-00c04fd430c8", True),
        ("da39a3ee5e6b4b0d3255bfef95601890afd80709", True),
        ("Bearer 9fK2pXw7Qd4ZtB6mRs8V", True),
        ("qhwxkzjvpmtrblsdqhwxkzjvpm", True),
    ],
)
def test_the_value_of_a_login_must_look_random(tmp_path: Path, value: str, is_secret: bool) -> None:
    assert bool(known(tmp_path, AUTH_THING=value)) is is_secret


def test_the_password_of_an_address_is_a_secret_whatever_the_variable_is_called(tmp_path: Path) -> None:
    found = known(tmp_path, HOMEPAGE="postgresql://me:p%40ss-W0rd!@db.example.test/x?y=1")

    assert found == {"HOMEPAGE": b"p%40ss-W0rd!", "HOMEPAGE #2": b"p@ss-W0rd!"}


def test_what_the_file_of_the_home_holds_is_a_secret_too(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, token=VALUE, database_url="postgresql://me:hunter2-9x@host/db")

    found = known_secrets(settings, {})

    assert (found["DELEGATE_TOKEN"], found["DELEGATE_DATABASE_URL"]) == (VALUE.encode(), b"hunter2-9x")


def test_a_header_is_a_secret_and_so_is_the_token_in_it(tmp_path: Path) -> None:
    found = known(tmp_path, AUTH_HEADER=f"Bearer {VALUE}-{VALUE}")

    assert list(found.values()) == [f"Bearer {VALUE}-{VALUE}".encode(), f"{VALUE}-{VALUE}".encode()]


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        (".git-credentials", f"https://me:{VALUE}@github.com\n", "git-credentials"),
        (".config/git/credentials", f"https://me:{VALUE}@github.com\n", "git credentials"),
        (
            ".gitconfig",
            f'[credential]\n\thelper = "!f() {{ echo username=me; echo password={VALUE}; }}; f"\n',
            "gitconfig",
        ),
        (".gitconfig", f'[http "https://x/"]\n\textraheader = AUTHORIZATION: basic {VALUE}\n', "gitconfig"),
        (".netrc", f"machine a.test\n  login me\n  password {VALUE}\n", "netrc"),
        (
            ".config/gh/hosts.yml",
            f"github.com:\n    users:\n        me:\n            oauth_token: {VALUE}\n",
            "gh login",
        ),
        (".claude/.credentials.json", f'{{"claudeAiOauth":{{"accessToken":"{VALUE}","expiresAt":1}}}}', "Claude login"),
        (".codex/auth.json", f'{{"OPENAI_API_KEY":null,"tokens":{{"id_token":"{VALUE}"}}}}', "Codex login"),
        (".codex/auth.json", f'{{\n  "OPENAI_API_KEY": "{VALUE}"\n}}', "Codex login"),
        (".npmrc", f"//registry.test/:_authToken={VALUE}\n", "npmrc"),
        (".pypirc", f"[pypi]\nusername = __token__\npassword = {VALUE}\n", "pypirc"),
        (".aws/credentials", f"[default]\naws_secret_access_key = {VALUE}\n", "AWS credentials"),
        (".delegate/token", f"{VALUE}\n", "DELEGATE_TOKEN"),
        (".delegate/secret.key", f"{VALUE}\n", "DELEGATE_SECRET_KEY"),
    ],
)
def test_logins_are_found_in_the_users_files(tmp_path: Path, file: str, text: str, name: str) -> None:
    place = tmp_path / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)

    assert known(tmp_path, HOME=str(tmp_path)) == {name: VALUE.encode()}


def test_the_places_follow_the_variables_of_the_programs(tmp_path: Path) -> None:
    for folder, file in (("gh", "hosts.yml"), ("claude", ".credentials.json"), ("codex", "auth.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text(f'"token": "{folder}-{VALUE}"')
    places = {"GH_CONFIG_DIR": "gh", "CLAUDE_CONFIG_DIR": "claude", "CODEX_HOME": "codex"}

    found = known(tmp_path, HOME="/nonexistent", **{name: str(tmp_path / place) for name, place in places.items()})

    assert list(found) == ["gh login", "Claude login", "Codex login"]


def test_the_credential_store_that_git_uses_is_read(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[credential]\n\thelper = store --file ~/elsewhere\n")
    (tmp_path / "elsewhere").write_text(f"https://me:{VALUE}@github.com\n")

    assert VALUE.encode() in known(tmp_path, HOME=str(tmp_path)).values()


def test_files_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".netrc").mkdir()
    (tmp_path / ".npmrc").symlink_to(tmp_path / ".npmrc")
    os.mkfifo(tmp_path / ".git-credentials")
    (tmp_path / ".gitconfig").write_bytes(b"\xff\xfe\x00password=\xff\xff")

    assert known(tmp_path, HOME=str(tmp_path)) == {}


def test_a_login_that_was_renewed_is_known_at_once(tmp_path: Path) -> None:
    login = tmp_path / ".netrc"
    login.write_text("machine a login b password first-0123456789\n")
    secrets = Secrets(Settings(home=tmp_path / ".delegate"), {"HOME": str(tmp_path)})
    before = secrets.redactor()

    login.write_text("machine a login b password second-9876543210\n")

    assert before.text("first-0123456789 second-9876543210") == "[redacted: netrc] second-9876543210"
    assert secrets.redactor().text("first-0123456789 second-9876543210") == "first-0123456789 [redacted: netrc]"
    assert secrets.text("second-9876543210") == "[redacted: netrc]"
    assert secrets.redactor() is secrets.redactor()


def test_the_token_of_the_settings_is_one(tmp_path: Path) -> None:
    found = known_secrets(Settings(home=tmp_path, token="plainlowercaseword"), {})

    assert found == {"DELEGATE_TOKEN": b"plainlowercaseword"}


@pytest.mark.parametrize(("value", "is_secret"), [(b"abcdefgh", False), (b"abcdefg1", True), (b"a" * 16, True)])
def test_short_words_are_not_secrets(value: bytes, is_secret: bool) -> None:
    assert looks_secret(value) is is_secret
