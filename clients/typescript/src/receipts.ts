import { ReceiptVerificationError } from "./errors.js";
import { bytesOf } from "./webhooks.js";

const TYPES = ["x402-offer+jws", "x402-receipt+jws", "purser-record+jws", "purser-refusal+jws"] as const;
const MAX_LENGTH = 16_384;
const ALGORITHM = { name: "ECDSA", namedCurve: "P-256" };

/** What a service has signed: `type` is one of its kinds of statements, `statement` what it states. */
export type Receipt = { type: (typeof TYPES)[number]; statement: Record<string, any> };

/**
 * Return what a receipt of a service states, or throw; nothing is asked of the service. `keys` is the content of its
 * `/.well-known/jwks.json`: kept copies verify receipts of keys that it has removed since.
 */
export async function verifyReceipt(
  receipt: string,
  keys: { keys: Record<string, any>[] },
  serviceUrl: string,
): Promise<Receipt> {
  try {
    const [header = "", payload = "", signature = "", ...rest] = receipt.split(".");
    const found = JSON.parse(textOf(header));
    const statement = JSON.parse(textOf(payload));
    const { origin, host } = new URL(serviceUrl);
    const [key, ...others] = keys.keys.filter((each) => each["kid"] === found.kid);
    const isExpected = found.alg === "ES256" && TYPES.includes(found.typ) && !("crit" in found);
    const isOfHost = String(found.kid).startsWith(`did:web:${host.replace(":", "%3A")}#`);
    const isSigner = new URL(statement.iss ?? statement.resourceUrl).origin === origin;
    if (rest.length || receipt.length > MAX_LENGTH || !key || others.length) throw new Error();
    if (!isExpected || !isOfHost || !isSigner) throw new Error();
    const { kty, crv, x, y } = key as Record<string, string>;
    const imported = await crypto.subtle.importKey("jwk", { kty, crv, x, y } as JsonWebKey, ALGORITHM, false, ["verify"]);
    const signed = new TextEncoder().encode(`${header}.${payload}`);
    const algorithm = { name: "ECDSA", hash: "SHA-256" };
    if (!(await crypto.subtle.verify(algorithm, imported, decoded(signature), signed))) throw new Error();
    return { type: found.typ, statement };
  } catch {
    const message = "This is no receipt that this service has signed with one of these keys.";
    throw new ReceiptVerificationError(message, { code: "RECEIPT_INVALID" });
  }
}

function decoded(part: string): Uint8Array<ArrayBuffer> {
  return bytesOf(part.replaceAll("-", "+").replaceAll("_", "/"));
}

function textOf(part: string): string {
  return new TextDecoder().decode(decoded(part));
}
