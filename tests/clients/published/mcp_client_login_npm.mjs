// The login of the client of the next major, which checks the issuer in the answer.
import * as sdk from "@modelcontextprotocol/client";
import { logIn } from "./mcp_login_npm.mjs";

export const npmPackage = "@modelcontextprotocol/client";

export const examples = logIn(sdk, (transport, answer) => transport.finishAuth(answer));
