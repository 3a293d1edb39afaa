"""Every GraphQL operation that Delegate sends. A test validates them against Linear's published schema."""

from __future__ import annotations

ISSUE_FIELDS = """
fragment IssueFields on Issue {
  id identifier title description url
  state { id name type }
  team {
    id key name
    states(first: 50) { nodes { id name type position } }
    gitAutomationStates(first: 50) { nodes { event } }
  }
  project { id name }
  delegate { id }
  parent { identifier title }
  labels(first: 50) { nodes { id name parent { name } } }
  attachments(first: 20) { nodes { title url } }
  children(first: 50) { nodes { id identifier title state { type } } }
  inverseRelations(first: 50) { nodes { type issue { id identifier title state { type } } } }
  comments(first: 50) { nodes { id body user { id name app } } }
}
"""
PERSON_FIELDS = "id name email active app guest"
SESSION = (
    "query Session($id: String!) { agentSession(id: $id) { id status "
    f"creator {{ {PERSON_FIELDS} }} sourceComment {{ id body }} issue {{ ...IssueFields }} }} }}" + ISSUE_FIELDS
)
ISSUE = "query Issue($id: String!) { issue(id: $id) { ...IssueFields } }" + ISSUE_FIELDS
PERSON = f"query Person($id: String!) {{ user(id: $id) {{ {PERSON_FIELDS} }} }}"
SESSIONS = """
query Sessions($after: String) {
  agentSessions(first: 50, after: $after, orderBy: updatedAt) {
    pageInfo { hasNextPage endCursor }
    nodes {
      id status updatedAt appUser { id } creator { id } issue { id }
      activities(last: 10, filter: { type: { eq: "prompt" } }) {
        nodes { id createdAt signal user { id } content { ... on AgentActivityPromptContent { type body } } }
      }
    }
  }
}
"""
WATCHED = """
query Watched($ids: [ID!]!) {
  issues(first: 40, filter: { id: { in: $ids } }) {
    nodes {
      id updatedAt title description state { type } delegate { id }
      inverseRelations(first: 20) { nodes { type issue { id state { type } } } }
    }
  }
}
"""
LABELLED = """
query Labelled($since: DateTimeOrDuration!) {
  issues(first: 20, orderBy: updatedAt, filter: { updatedAt: { gte: $since }, labels: { some: { or: [
    { name: { startsWithIgnoreCase: "delegate" } }, { name: { startsWithIgnoreCase: "delego" } }
  ] } } }) {
    nodes {
      id createdAt creator { id }
      labels(first: 20) { nodes { id name parent { name } } }
      history(first: 20) { nodes { createdAt actorId addedLabelIds } }
    }
  }
  comments(first: 20, filter: { createdAt: { gte: $since }, issue: { labels: { some: { or: [
    { name: { startsWithIgnoreCase: "delegate" } }, { name: { startsWithIgnoreCase: "delego" } }
  ] } } } }) { nodes { id body createdAt user { id } parent { id } issue { id } } }
}
"""
VIEWER = f"query Viewer {{ viewer {{ {PERSON_FIELDS} }} organization {{ id name urlKey }} }}"
PLACES = """
query Places {
  teams(first: 100) { nodes { id key name } }
  projects(first: 100) { nodes { id name } }
}
"""
LABELS = "query Labels { issueLabels(first: 250) { nodes { id name isGroup parent { id } team { id } } } }"
SUGGESTIONS = """
query Suggestions($issueId: String!, $candidates: [CandidateRepository!]!) {
  issueRepositorySuggestions(issueId: $issueId, candidateRepositories: $candidates) {
    suggestions { repositoryFullName confidence }
  }
}
"""
CREATE_ACTIVITY = """
mutation CreateActivity($input: AgentActivityCreateInput!) { agentActivityCreate(input: $input) { success } }
"""
CREATE_SESSION = """
mutation CreateSession($input: AgentSessionCreateOnIssue!) {
  agentSessionCreateOnIssue(input: $input) { success agentSession { id } }
}
"""
UPDATE_SESSION = """
mutation UpdateSession($id: String!, $input: AgentSessionUpdateInput!) {
  agentSessionUpdate(id: $id, input: $input) { success }
}
"""
UPDATE_ISSUE = """
mutation UpdateIssue($id: String!, $input: IssueUpdateInput!) { issueUpdate(id: $id, input: $input) { success } }
"""
LINK_PULL_REQUEST = """
mutation LinkPullRequest($issueId: String!, $url: String!) {
  attachmentLinkGitHubPR(issueId: $issueId, url: $url) { success }
}
"""
LINK_URL = """
mutation LinkUrl($issueId: String!, $url: String!, $title: String) {
  attachmentLinkURL(issueId: $issueId, url: $url, title: $title) { success }
}
"""
CREATE_COMMENT = "mutation CreateComment($input: CommentCreateInput!) { commentCreate(input: $input) { success } }"
UPDATE_COMMENT = """
mutation UpdateComment($id: String!, $input: CommentUpdateInput!) {
  commentUpdate(id: $id, input: $input) { success }
}
"""
CREATE_LABEL = """
mutation CreateLabel($input: IssueLabelCreateInput!) {
  issueLabelCreate(input: $input) { success issueLabel { id } }
}
"""
NEW_LABELS = """
query NewLabels($since: DateTimeOrDuration!, $names: [IssueLabelFilter!]!) {
  issues(first: 20, orderBy: updatedAt, filter: { updatedAt: { gt: $since }, labels: { some: { or: $names } } }) {
    nodes {
      id labels(first: 20) { nodes { id name parent { name } } }
      history(first: 20) { nodes { createdAt actorId addedLabelIds } }
    }
  }
}
"""
