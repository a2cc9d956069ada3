"""The RPC methods by topic. Each takes the chain, then the request's parameters, and expects the lock held.

Names and shapes: solana.com/docs/rpc. What a method refuses, a real node refuses in the same words.
"""
