"""The RPC methods by topic. Each takes the chain and the request's parameters, and requires the lock.

Names and formats: solana.com/docs/rpc. Error messages are those of a real node.
"""
