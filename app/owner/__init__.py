"""The owner's web pages: claiming an agent, its overview, limits, freeze and keys.

The only writer of `owner_sessions` and `owner_session_keys`. Plain HTML that works without scripts. Pages show and
change only agents for which the session has the owner key; the JSON API does not accept these sessions.
"""
