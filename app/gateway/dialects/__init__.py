"""What the languages of the upstreams say: a request's bounds before a call, an answer's usage after it.

`requests.read_call` turns a request into the facts that price it; `answers.open_answer` reads the usage out of an
answer while its bytes pass. Nothing here knows a price, a key, a database or the network.
"""
