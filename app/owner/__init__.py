"""The pages for people: claiming an agent, and keeping it in hand with the owner key.

Alone writes `owner_sessions` and `owner_session_keys`. Plain HTML that works without scripts. No page tells or does
anything that the agent's owner has not shown the key for, and the JSON API knows nothing of these sessions.
"""
