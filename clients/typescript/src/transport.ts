import { PurserError } from "./base-error.js";
import { ConnectionFailed, familyOf } from "./errors.js";
import { Operations } from "./operations.js";
import type { CallOptions, Operation } from "./types.js";

/** The key can be an agent's, an application's access token, a gateway-only or a master key. */
export interface PurserOptions {
  baseUrl?: string; // PURSER_BASE_URL, or a service on this machine
  apiKey?: string; // PURSER_API_KEY
  walletId?: string; // where none is named; the first
  maxRetries?: number; // 5
  timeout?: number; // 60000 milliseconds
  maxAmountUsd?: number; // of each `fetch` that names no `max_amount_usd`
  faucetUrl?: string; // PURSER_FAUCET_URL, or that of `./run`
  fetch?: typeof fetch; // what sends the requests
}

/** These refuse a request before anything is done. */
const NOTHING_DONE = ["RATE_LIMITED", "OVERLOADED"];
const LONGEST_PAUSE_SECONDS = 60;

/** Sends requests, and repeats them where that has no second effect. */
export class Transport extends Operations {
  readonly baseUrl: string;
  apiKey: string | undefined;
  walletId: string | undefined;

  constructor(protected readonly options: PurserOptions = {}) {
    super();
    this.baseUrl = (options.baseUrl ?? environment("PURSER_BASE_URL") ?? "http://127.0.0.1:8000").replace(/\/+$/, "");
    this.apiKey = options.apiKey ?? environment("PURSER_API_KEY");
    this.walletId = options.walletId;
  }

  protected async call(operation: Operation, args: Record<string, any>, options: CallOptions = {}): Promise<any> {
    const { url, init } = await this.#prepare(operation, args);
    const key = init.headers.get("Idempotency-Key") ?? undefined;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#exchange(url, init, operation, options);
      } catch (error) {
        if (!(error instanceof PurserError)) throw error;
        error.idempotencyKey = key;
        const pause = pauseAfter(error, attempt, operation, key !== undefined);
        const isOver = attempt >= (this.options.maxRetries ?? 5) && error.code !== "IDEMPOTENCY_CONFLICT";
        if (pause === undefined || isOver) throw error;
        await sleep(pause, options.signal);
      }
    }
  }

  /** As the platform's `fetch`, by what the options name. */
  protected send(url: string, init: RequestInit): Promise<Response> {
    return (this.options.fetch ?? fetch)(url, init);
  }

  async #prepare({ method, path, query = [], headers = {}, body, wallet, raw }: Operation, args: Record<string, any>) {
    const rest = { ...args };
    const take = (name: string) => [rest[name], delete rest[name]][0];
    if (wallet) rest[wallet] ??= this.walletId ??= (await this.listWallets({ limit: 1 })).wallets[0]?.id;
    if (wallet && !rest[wallet]) throw new PurserError("This agent has no wallet.", { code: "NO_WALLET" });
    const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => {
      const text = encodeURIComponent(take(name) ?? "");
      return name === "path" ? text.replaceAll("%2F", "/") : text;
    });
    const found = new URL(this.baseUrl + filled);
    const given = [...query.map((name) => [name, take(name)]), ...Object.entries((raw && take("query")) || {})];
    for (const [name, value] of given) if (value !== undefined) found.searchParams.append(name, String(value));
    const sent = new Headers((raw && take("headers")) || {});
    for (const [name, header] of Object.entries(headers)) {
      const value = take(name) ?? (header === "Idempotency-Key" ? crypto.randomUUID() : undefined);
      if (value !== undefined) sent.set(header, String(value));
    }
    if (this.apiKey) sent.set(this.apiKey.startsWith("mk_") ? "X-Master-Key" : "X-API-Key", this.apiKey);
    let content = body === "whole" ? rest["body"] : body && rest;
    if (content && [Object.prototype, Array.prototype].includes(Object.getPrototypeOf(content))) {
      content = JSON.stringify(content);
      sent.set("Content-Type", "application/json");
    }
    return { url: found.href, init: { method, headers: sent, body: content as BodyInit | undefined } };
  }

  async #exchange(url: string, init: RequestInit, { raw }: Operation, { signal, timeout }: CallOptions): Promise<any> {
    signal?.throwIfAborted();
    const aborter = new AbortController();
    const abort = () => aborter.abort(signal?.reason);
    signal?.addEventListener("abort", abort);
    const timer = setTimeout(() => aborter.abort(), timeout ?? this.options.timeout ?? 60_000);
    let response: Response, body: any;
    try {
      response = await this.send(url, { ...init, signal: aborter.signal });
      const isRead = !raw || (!response.ok && response.headers.has("X-Request-Id"));
      if (isRead) body = await readJson(raw ? response.clone() : response);
    } catch (cause) {
      signal?.throwIfAborted();
      throw new ConnectionFailed("There was no complete response.", { code: "CONNECTION_FAILED", cause });
    } finally {
      clearTimeout(timer);
      if (!raw) signal?.removeEventListener("abort", abort);
    }
    // The answers of others are returned whatever their status; errors of the service carry the id of the request.
    const isOurs = body?.code && body.request_id === response.headers.get("X-Request-Id");
    if (raw ? isOurs : !response.ok) throw errorOf(response, body);
    return raw ? response : body;
  }
}

/** Return after how many seconds a call may be repeated; undefined if it might have a second effect. */
function pauseAfter(error: PurserError, attempt: number, { method, raw }: Operation, isKeyed: boolean) {
  const backoff = Math.min(8, 0.5 * 2 ** attempt) * (0.75 + Math.random() / 2);
  const isRepeatable = !raw && (isKeyed || method === "GET" || method === "PUT");
  if (error instanceof ConnectionFailed) return isRepeatable ? backoff : undefined;
  const { code, status, retryAfter, details } = error;
  // The first request is running, or has been lost: the key decides later.
  if (code === "IDEMPOTENCY_CONFLICT") return retryAfter && Math.min(retryAfter, 2);
  if (details["outcome"] === "unknown") return isKeyed ? backoff : undefined;
  const isTold = (status === 429 || status === 503) && retryAfter !== undefined && retryAfter <= LONGEST_PAUSE_SECONDS;
  return isTold && !raw && (isRepeatable || NOTHING_DONE.includes(code)) ? Math.max(retryAfter, backoff) : undefined;
}

/** Return the JSON of a response; of an error that has none, undefined. */
async function readJson(response: Response): Promise<any> {
  const text = await response.text();
  return response.ok || text.startsWith("{") ? JSON.parse(text) : undefined;
}

export function errorOf({ status, statusText, headers }: Response, body: Record<string, any> = {}): PurserError {
  const code = body["code"] ?? `HTTP_${status}`;
  const seconds = headers.get("Retry-After");
  const retryAfter = seconds ? Number(seconds) : undefined;
  const receipt = headers.get("X-Receipt") ?? undefined;
  return new (familyOf(code, status))(body["error"] ?? statusText, { code, status, body, retryAfter, receipt });
}

export function environment(name: string): string | undefined {
  return (globalThis as { process?: { env?: Record<string, string> } }).process?.env?.[name];
}

export async function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  signal?.throwIfAborted();
}
