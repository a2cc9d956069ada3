"""Shopping: purchases in web shops, made by a browser in a worker, each of them at most once.

Decides about money and tells the shopper what it may do; never drives a browser itself. Alone writes `purchases`,
`purchase_events`, `purchase_steps` and `purchase_evidence`. Credentials and addresses are sealed, and gone at the end.
"""
