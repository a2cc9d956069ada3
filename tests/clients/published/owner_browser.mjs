// An owner without scripts, for clients that open a browser to sign in: claims an agent, and consents by the forms.
import assert from "node:assert";

export class OwnerBrowser {
  cookies = new Map();

  constructor(url) {
    this.url = url;
  }

  async open(address, fields) {
    const headers = { Cookie: [...this.cookies].map(([name, value]) => `${name}=${value}`).join("; ") };
    const options = fields ? { method: "POST", body: new URLSearchParams(fields) } : {};
    const answer = await fetch(new URL(address, this.url), { ...options, headers, redirect: "manual" });
    for (const cookie of answer.headers.getSetCookie()) {
      const [, name, value] = cookie.match(/^([^=]+)=([^;]*)/);
      this.cookies.set(name, value);
    }
    return answer;
  }

  async json(path, body) {
    const headers = { "Content-Type": "application/json" };
    return (await fetch(this.url + path, { method: "POST", headers, body: JSON.stringify(body) })).json();
  }

  async consent(address) {
    const made = await this.json("/v1/agents/register", {});
    const { ownerKey } = await this.json("/v1/device/claim", { code: made.claimCode });
    const hidden = (page) => [...page.matchAll(/<input type="hidden" name="([^"]*)" value="([^"]*)"/g)].map(([, ...field]) => field);
    const [, consent] = (await (await this.open(address)).text()).match(/href="(\/owner\/connect\/[^"]+)"/);
    const signIn = await this.open((await this.open(consent)).headers.get("Location"));
    await this.open("/owner/sign-in", [...hidden(await signIn.text()), ["owner_key", ownerKey]]);
    const form = await (await this.open(consent)).text();
    const [, account] = form.match(/name="account" value="([^"]+)"/);
    const chosen = [["account", account], ["scope", "wallet:read"], ["days", "7"], ["decision", "allow"]];
    const answer = await this.open(consent, [...hidden(form), ...chosen]);
    assert.equal(answer.status, 303, await answer.text());
    return new URL(answer.headers.get("Location"));
  }
}
