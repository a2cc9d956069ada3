"""The official client's OAuth for an owner without scripts, in both of its majors."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.client import auth
from mcp.shared.auth import OAuthClientMetadata
from owner_browser import OwnerBrowser

REDIRECT = "http://127.0.0.1:1/callback"


class Login:
    """One login: the authentication for a client's requests, and its tokens, in memory."""

    def __init__(self, url: str, **options: Any) -> None:
        self.answers: list[dict[str, str]] = []
        self.tokens: Any = None
        self.client: Any = None
        self._owner = OwnerBrowser(url)
        self.auth = auth.OAuthClientProvider(
            server_url=f"{url}/mcp",
            client_metadata=OAuthClientMetadata(
                client_name="Example", redirect_uris=[REDIRECT], token_endpoint_auth_method="none"
            ),
            storage=self,
            redirect_handler=self._redirect,
            callback_handler=self._callback,
            **options,
        )

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info

    async def _redirect(self, address: str) -> None:
        self.answers.append(await asyncio.to_thread(self._owner.consent, address))

    async def _callback(self) -> Any:
        found = self.answers[-1]
        if hasattr(auth, "AuthorizationCodeResult"):
            return auth.AuthorizationCodeResult(code=found["code"], state=found["state"], iss=found["iss"])
        return found["code"], found["state"]
