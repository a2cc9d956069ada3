"""Provider dialects: the cost parameters of a request, and the usage reported by a response.

`request.parse` reads what determines the cost of a call; `response.response_reader` reads the usage of a response
while it is streamed. Neither uses prices, keys, the database or the network.
"""
