// Verifies a request and a directory with npm's web-bot-auth and http-message-sig. Argument: JSON with both.
import { readFileSync } from "node:fs";
import { HTTP_MESSAGE_SIGNATURES_DIRECTORY, jwkToKeyID, helpers, verify } from "web-bot-auth";
import { verifierFromJWK } from "web-bot-auth/crypto";

const { url, headers, directory } = JSON.parse(process.argv[2]);
const [, keyid] = /keyid="([^"]+)"/.exec(headers["Signature-Input"]);
const ids = await Promise.all(directory.keys.map((jwk) => jwkToKeyID(jwk, helpers.WEBCRYPTO_SHA256, helpers.BASE64URL_DECODE)));
const verifier = await verifierFromJWK(directory.keys[ids.indexOf(keyid)]);
const verified = async (target) => {
  try {
    await verify(new Request(target, { headers }), verifier);
    return true;
  } catch {
    return false;
  }
};
const elsewhere = await verified("https://another.example/");
const path = new URL("../node_modules/web-bot-auth/package.json", import.meta.url);
const { version } = JSON.parse(readFileSync(path));
const found = { here: await verified(url), elsewhere, ids, well_known: HTTP_MESSAGE_SIGNATURES_DIRECTORY, version };
console.log(JSON.stringify(found));
