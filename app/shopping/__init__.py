"""Shopping: purchases in web shops, made by a browser in a worker, each at most once.

Decides about money and what the shopper may do; never drives a browser. The only writer of `purchases`,
`purchase_events`, `purchase_steps` and `purchase_evidence`. Credentials and addresses are sealed, then deleted.
"""
