"""Headers that state the identity or address of a client, which only a proxy can know."""

_NAMES = (
    "forwarded via origin referer from x-real-ip x-client-ip x-cluster-client-ip client-ip true-client-ip x-remote-ip"
    " x-remote-addr x-host x-forwarded fastly-client-ip fly-client-ip x-originating-ip x-proxyuser-ip cdn-loop"
)
OF_CLIENT = frozenset(_NAMES.split())
_PREFIXES = ("x-forwarded-", "cf-", "x-envoy-", "x-azure-", "x-appengine-", "x-original-", "x-vercel-")


def names_client(name: str) -> bool:
    return name.lower() in OF_CLIENT or name.lower().startswith(_PREFIXES)
