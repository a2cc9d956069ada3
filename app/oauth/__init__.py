"""OAuth 2.1: an owner connects an application to an agent, and gets it a key of less power than the agent's.

The grants are authlib's. The only writer of `oauth_clients` and `oauth_tokens`; what was granted is in `app.identity`.
"""
