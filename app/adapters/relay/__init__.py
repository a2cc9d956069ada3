"""Bridges of ether out of Base by Relay, or by LI.FI through Relay: a deposit that a relayer makes good elsewhere.

What is signed is a call of Relay's own depository under the id of an order; what the order says is Relay's word.
"""
