// Opens with npm's @hpke/core what the service seals, and seals what it opens. Argument: JSON with texts as base64url.
import { readFileSync } from "node:fs";
import { Aes256Gcm, CipherSuite, DhkemP256HkdfSha256, HkdfSha256 } from "@hpke/core";

const { privateKey, sealed, exported, publicKey, message, imported } = JSON.parse(process.argv[2]);
const suite = new CipherSuite({ kem: new DhkemP256HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes256Gcm() });
const info = (text) => new TextEncoder().encode(text);
const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64url"));

const recipientKey = await suite.kem.importKey("raw", bytes(privateKey), false);
const [enc, text] = [bytes(sealed).slice(0, 65), bytes(sealed).slice(65)];
const opened = await suite.open({ recipientKey, enc, info: info(exported) }, text);
const other = await suite.open({ recipientKey, enc, info: info(imported) }, text).then(() => true, () => false);

const recipientPublicKey = await suite.kem.importKey("raw", bytes(publicKey), true);
const made = await suite.seal({ recipientPublicKey, info: info(imported) }, info(message));
const joined = Buffer.concat([Buffer.from(made.enc), Buffer.from(made.ct)]).toString("base64url");
const path = new URL("../node_modules/@hpke/core/package.json", import.meta.url);
const { version } = JSON.parse(readFileSync(path));
console.log(JSON.stringify({ opened: new TextDecoder().decode(opened), other, sealed: joined, version }));
