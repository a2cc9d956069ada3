"""Bridges of ether out of Base by Relay, or by LI.FI through Relay: a deposit that a relayer pays out elsewhere.

We sign a call of Relay's own depository under the id of an order; the order's content is Relay's claim.
"""
