import { WebhookVerificationError } from "./errors.js";
import type { Output } from "./types.js";

const TOLERANCE_SECONDS = 300;

export type Event = Output<"list_events">["events"][number];

/** Return the event of a delivery (Standard Webhooks 1.0). `body` is the body as it arrived, not parsed. */
export async function verifyWebhook(
  body: string | Uint8Array,
  headers: Headers | Record<string, string | string[] | undefined>,
  secret: string,
): Promise<Event> {
  const given = new Headers(headers as Record<string, string>);
  const text = typeof body === "string" ? body : new TextDecoder().decode(body);
  const sentAt = given.get("webhook-timestamp") ?? "";
  if (!/^\d+$/.test(sentAt) || Math.abs(Date.now() / 1000 - Number(sentAt)) > TOLERANCE_SECONDS)
    throw new WebhookVerificationError("The timestamp is missing, or too far from now.", { code: "WEBHOOK_TIMESTAMP" });
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const bytes = bytesOf(secret.replace(/^whsec_/, ""));
  const key = await crypto.subtle.importKey("raw", bytes, algorithm, false, ["verify"]);
  const signed = new TextEncoder().encode(`${given.get("webhook-id")}.${sentAt}.${text}`);
  for (const each of (given.get("webhook-signature") ?? "").split(" ")) {
    const [version, signature = ""] = each.split(",");
    if (version === "v1" && (await crypto.subtle.verify("HMAC", key, bytesOf(signature), signed))) return JSON.parse(text);
  }
  throw new WebhookVerificationError("No signature is valid for this secret.", { code: "WEBHOOK_SIGNATURE" });
}

/** Return decoded base64; empty, which no signature is, if it is none. */
export function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  try {
    return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}
