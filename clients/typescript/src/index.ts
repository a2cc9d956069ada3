export { PurserError } from "./base-error.js";
export { Purser, type FetchInit, type Pending } from "./client.js";
export * from "./errors.js";
export type { components, operations, paths } from "./schema.js";
export type { PurserOptions } from "./transport.js";
export type { CallOptions } from "./types.js";
export { verifyReceipt, type Receipt } from "./receipts.js";
export { verifyWebhook, type Event } from "./webhooks.js";
