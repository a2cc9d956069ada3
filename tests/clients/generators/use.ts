import createClient from "openapi-fetch";
import type { paths } from "./types";
import { register, transfer, openaiChatCompletions } from "./sdk";
const client = createClient<paths>({ baseUrl: "http://127.0.0.1" });
export const a = client.POST("/v1/agents/register", { body: {} });
export const b = client.POST("/v1/wallets/{wallet_id}/transfer", { params: { path: { wallet_id: "w" } }, body: { chain: "base", to: "0x", amount: "1", currency: "USDC" } });
export const c = register({ body: {} });
export const d = transfer({ path: { wallet_id: "w" }, body: { chain: "base", to: "0x", amount: "1", currency: "USDC" } });
export const e = openaiChatCompletions({ body: { model: "m", messages: [] } });
