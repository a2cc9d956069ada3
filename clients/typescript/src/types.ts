import type { operations } from "./schema.js";

/** What a single call may change; `timeout` is in milliseconds. */
export interface CallOptions {
  signal?: AbortSignal;
  timeout?: number;
}

/** Where an operation sends its arguments. A `raw` one returns the response unread. */
export interface Operation {
  method: string;
  path: string;
  query?: string[];
  headers?: Record<string, string>;
  body?: "members" | "whole";
  wallet?: string;
  raw?: boolean;
}

type Id = keyof operations;
type Content<T> = T extends { content: { "application/json": infer B } } ? B : never;
type Present<T> = [NonNullable<T>] extends [never] ? unknown : NonNullable<T>;
type Snake<S> = S extends `${infer A}-${infer B}` ? `${Lowercase<A>}_${Snake<B>}` : Lowercase<S & string>;
type Headers<T> = { [K in keyof T as Snake<K>]: T[K] };
type Optional<T, K extends string> = T extends unknown
  ? Omit<T, K & keyof T> & Partial<Pick<T, K & keyof T>>
  : never;
type Parameters<O extends { parameters: object }> = "path" extends keyof O["parameters"]
  ? Present<O["parameters"]["path"]> &
      ("query" extends keyof O["parameters"] ? Present<O["parameters"]["query"]> : unknown) &
      ("header" extends keyof O["parameters"] ? Headers<Present<O["parameters"]["header"]>> : unknown)
  : unknown;
type Body<O> = O extends { requestBody?: infer R } ? Present<Content<NonNullable<R>>> : unknown;

/** What else a call of an upstream may send. */
interface Forwarded {
  query?: Record<string, string | number | boolean>;
  headers?: Record<string, string>;
}

/** The arguments of an operation. `wallet_id` is the first wallet if it is left out. */
export type Input<I extends Id, W extends string = "", Kind extends "" | "raw" | "whole" = ""> = Kind extends "whole"
  ? Parameters<operations[I]> & Forwarded & { body?: unknown }
  : Kind extends "raw"
    ? Parameters<operations[I]> & Forwarded & Body<operations[I]>
    : Optional<Parameters<operations[I]> & Body<operations[I]>, W>;

/** What an operation returns; a dry run returns a `Quote` instead of a `Result`. */
export type Output<I extends Id> = Content<operations[I]["responses"][keyof operations[I]["responses"]]>;
export type Quote<I extends Id> = Extract<Output<I>, { dry_run: boolean }>;
export type Result<I extends Id> = Exclude<Output<I>, { dry_run: boolean }>;
