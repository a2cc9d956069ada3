import type { ErrorCode } from "./errors.js";

type Failure = Partial<Pick<PurserError, "status" | "body" | "details" | "retryAfter" | "receipt" | "cause">> & { code: string };

/** Every error of this package: the API's `code`, `status` (0 without a response) and `details`. */
export class PurserError extends Error {
  declare readonly code: ErrorCode | (string & {});
  declare readonly status: number;
  declare readonly details: Record<string, any>;
  /** The whole body, such as the terms of a payment. */
  declare readonly body: Record<string, any>;
  declare readonly requestId: string | undefined;
  declare readonly retryAfter: number | undefined; // seconds
  /** The signed refusal, if the response has one: see `verifyReceipt`. */
  declare readonly receipt: string | undefined;
  /** Repeating the call with it as `idempotency_key` has no second effect. */
  idempotencyKey: string | undefined;

  constructor(message: string, { code, status = 0, body = {}, details = body["details"] ?? {}, ...rest }: Failure) {
    super(message, { cause: rest.cause });
    const known = { code, status, body, details, retryAfter: rest.retryAfter, receipt: rest.receipt, requestId: body["request_id"] };
    Object.assign(this, { name: new.target.name, ...known });
  }
}
