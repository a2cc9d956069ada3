"""Registers an agent with generated code, and calls a provider through the gateway."""

import json
import sys

from generated import AuthenticatedClient, Client
from generated.api.openai import openai_chat_completions
from generated.api.registration import register
from generated.api.wallets import list_wallets
from generated.models import RegisterRequest, RegisterResponse, WalletPage

url = sys.argv[1]
made = register.sync(client=Client(base_url=url), body=RegisterRequest())
assert isinstance(made, RegisterResponse)
client = AuthenticatedClient(base_url=url, token=made.api_key, prefix="", auth_header_name="X-API-Key")
page = list_wallets.sync(client=client)
assert isinstance(page, WalletPage)
call = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hello"}]}
answer = openai_chat_completions.sync_detailed(client=client, body=call)
done = {
    "registered": made.wallet.id,
    "wallets": [str(each.id) for each in page.wallets],
    "answered": answer.status_code.value,
}
sys.stdout.write(json.dumps(done))
