"""The vocabulary of shops: texts of buttons, fields and messages. English, with German and French.

What many shops share belongs here; a word of a single shop does not.
"""

import re


def _pattern(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_CART = r"(cart|basket|bag|trolley)"

ADD_GOODS = _pattern(
    rf"\b(add|put)( item| this| it)?( to| in| into| in to)? (your |my |the )?(shopping )?({_CART}|order)\b",
    r"\bbuy( it)?( now)?\b", r"\b(purchase|order|get it|reserve) now\b", r"\bpurchase\b",
    r"\bin den (warenkorb|einkaufswagen)\b", r"\bajouter au panier\b",
)  # fmt: skip
# An address is added, too.
ADD_TO_CART = _pattern(ADD_GOODS.pattern, r"^\W*add\W*$")
# Identifiers in the markup, in every language.
ADD_TO_CART_CODE = _pattern(rf"\badd[-_]?(item[-_]?)?to[-_]?{_CART}")
REMOVE_CODE = _pattern(r"(^|[\W_])(remove|delete|trash|discard)|(remove|delete)([\W_]|$)")
CHECKOUT_PATH = _pattern(r"checkout|/kassa|/kasse|/caisse|/cassa")
OFFLINE_PAYMENT_CODE = _pattern(
    r"(^|[\W_])(cod|cash[-_]?on[-_]?delivery|invoice|bank[-_]?transfer|cheque|check[-_]?mo|bacs|prepayment)$"
)
GUEST_CODE = _pattern(r"\b(as_?)?(guest|anonymous)\b")
# A button that buys with one click is an order button, not a cart's.
NOT_ADD_TO_CART = _pattern(
    r"wish|compare|list|favou?rite|gift card|sold out|buying guide|how to|notify|buy again",
    r"\b(1|one).?click\b|\binstant(ly)?\b|\bexpress\b|\bsubscri|\bauto.?ship",
)
# Extras that a shop adds, and recurring orders.
EXTRAS = _pattern(
    r"insur|protect(ion)?\b|warrant|\bguarantee plus|donat|\btip\b|gift.?(wrap|box)|carbon|offset|round up|newsletter|special offers",
    r"\bmembership\b|\btrial\b|subscri|auto.?(ship|renew|delivery)|versicherung|spende|assurance",
)
RECURRING = _pattern(
    r"subscri(be|ption)\b.{0,40}(\bevery\b|\brenews)", r"\bauto.?(ship|renew)", r"\brenews\b", r"\brecurring (order|payment|charge|billing)",
    r"\b(deliver(y|ed)?|ship(s|ped)?|sent|charged|billed|repeats?)\b.{0,20}\bevery (\d+ |two |other )?(day|week|month|year)s?\b",
    r"\b(billed|charged) (daily|weekly|monthly|quarterly|yearly|annually)\b", r"\b(free |paid )?trial\b.{0,60}\bthen\b",
    r"\bthen \W{0,2}\d[\d.,]* ?(/|per|a|every) ?(day|week|month|mo|year)\b",
)  # fmt: skip
NOT_RECURRING = _pattern(
    r"affirm|klarna|afterpay|installment|instalment|interest|financ|newsletter|one.?time|cancel (your|a) subscription"
)
ONE_TIME_PURCHASE = _pattern(
    r"\bone.?(time|off)\b( purchase| order| delivery)?", r"\bbuy once\b", r"\bsingle (purchase|order)\b", r"\bdeliver once\b",
    r"\beinmalig", r"\bachat unique\b",
)  # fmt: skip
SOLD_OUT = _pattern(
    r"\bsold.?out\b", r"\bout of stock\b", r"\bnot in stock\b", r"\bno longer available\b",
    r"\b(currently|temporarily) (un|not )available\b", r"\bunavailable\b", r"\bnotify me when\b",
    r"\bausverkauft\b", r"\bnicht (verfügbar|auf lager)\b", r"\b(rupture de stock|épuisé)\b",
)  # fmt: skip
VIEW_CART = _pattern(
    rf"\b(view|go to|see|show|open|review)( your| my| the)?( shopping)? {_CART}\b",
    rf"^\W*(your |my )?(shopping )?{_CART}\b.{{0,20}}$",
    r"^\W*(zum )?(warenkorb|einkaufswagen)\b.{0,12}$", r"^\W*(voir (le|mon) )?panier\b.{0,12}$",
)  # fmt: skip
CART_PATH = _pattern(
    r"/(shopping-?)?(cart|basket|bag|trolley|warenkorb|panier)(/|$|\.|\?|#)", r"#/?(cart|basket|bag)\b"
)
EMPTY_CART = _pattern(
    rf"{_CART} (is|was) (now |currently |still )?empty", rf"\bempty {_CART}\b(?! (now|all))", r"\bno (items|products|articles)\b",
    rf"nothing (is )?in (your|the) {_CART}", r"\b(don.t|do not) have any(thing| items)", r"warenkorb ist (noch )?leer",
    r"panier est vide", r"\b0 (items|articles|products)\b",
)  # fmt: skip
REMOVE = _pattern(
    r"^\W*(remove|delete|discard|take out|entfernen|löschen|supprimer|retirer)\b.{0,60}$", r"^\W*[×✕✖xX🗑]\W*$"
)
NOT_REMOVE = _pattern(r"coupon|voucher|code|discount|account|address|promo|gift|notice|alert|close")
# What a shop keeps besides a cart, which is counted and removed in the same way.
NOT_OF_CART = _pattern(
    r"wish|favou?rit|later\b|compare|account|addr|profile|subscri|message|notif|/orders|merkzettel|konto"
)
UPDATE = _pattern(r"\b(update|refresh|recalculate|aktualisieren|mettre à jour)\b")
CHECKOUT = _pattern(
    r"\bcheck\s?-?out\b", r"\bproceed to (pay|order|purchase)", r"\bzur kasse\b", r"\bpasser (la )?commande\b",
    r"^\W*(go to|proceed to|continue to) (the )?(till|pay desk|delivery|shipping|order)\W*$",
)  # fmt: skip
PLACE_ORDER = _pattern(
    r"\bplace (\w+ ){0,2}order\b",
    r"\b(complete|finali[sz]e|finish|confirm|submit|send)( my| your| the| this| and)?( pay)?( and)?( order| purchase| checkout)\b",
    r"\bconfirm (and|&) (pay|order|buy)\b", r"\bpay (now|and|with|on|\W{0,2}\d)", r"\b(order|buy)( it)? now\b",
    r"\border (and|&) pay\b", r"\bbuy and pay\b",
    r"^\W*(confirm|finish|submit|buy|pay|purchase|order|place|complete)\W*$",
    r"\b(zahlungspflichtig|kostenpflichtig) bestellen\b", r"\bjetzt (kaufen|bestellen|bezahlen)\b",
    r"\b(valider|confirmer) (ma |la )?commande\b", r"\bpayer\b",
)  # fmt: skip
# Words of a page about an order that is sent somewhere.
DELIVERY = _pattern(
    r"\bship(ping|ment|ped|s)?\b", r"\bdeliver(y|ed|s)?\b", r"\b(postal|street|home) address\b", r"\bpostage\b",
    r"versand|liefer|livraison",
)  # fmt: skip
NEXT = _pattern(
    r"\bcontinue\b", r"\bnext\b", r"\bproceed\b", r"\bship (it )?(here|to (this|that) address)\b",
    r"\buse (this|that) address\b", r"\bdeliver (it )?(here|to this address)\b", r"\bsave (and|&) continue\b",
    r"\bgo (on|to (payment|shipping|delivery|review))\b", r"\breview( my| your| the)? order\b", r"\bsave address\b",
    r"\bsave\b", r"\bselect\b", r"\bweiter\b", r"\bfortfahren\b", r"\bcontinuer\b", r"\bsuivant\b", r"\bto (payment|shipping|delivery|review)\b",
)  # fmt: skip
# The name of the next step, or of the choice that a click makes.
NAMED_STEP = _pattern(
    r"\bto (the )?(payment|shipping|delivery|address|review|summary|overview)\b", r"\breview( my| your| the)? order\b",
    r"\bship (it )?(here|to)\b", r"\bdeliver (it )?(here|to)\b", r"\buse (this|that) address\b", r"\bsave address\b", r"\bselect\b",
    r"\b(zur|zum) (zahlung|versand|lieferung|übersicht|prüfung)\b", r"\bvers (le paiement|la livraison|le récapitulatif)\b",
)  # fmt: skip
NOT_NEXT = _pattern(
    r"continue (shopping|browsing)|keep shopping|back|return|cancel|edit|change|remove|delete|apply|coupon|voucher|promo",
    r"wish|guest|register|create|sign up|log ?in|sign ?in|log ?out|sign ?out|paypal|google pay|apple pay|amazon pay|shop pay|klarna",
    r"next (day|week|month|image|slide|product|page)|save (for later|card|cart|basket)|subscri|newsletter|search|zurück",
)  # fmt: skip
CHOOSE_ADDRESS = _pattern(
    r"\b(ship|deliver|send)( it)?( here| to (this|that))( address)?\b", r"\buse (this|that)( address)?\b",
    r"\bselect( this)?( address)?\b", r"\bchoose( this)?( address)?\b", r"\bdiese adresse\b", r"\bcette adresse\b",
)  # fmt: skip
NEW_ADDRESS = _pattern(
    r"\b(add|enter|use|ship to|new)( a| an)?( new| another| different)( shipping| delivery)? address\b",
    r"\bnew (shipping |delivery )?address\b", r"\bneue adresse\b", r"\bnouvelle adresse\b",
)  # fmt: skip
LOGIN = _pattern(
    r"^\W*((member|customer|account) )?(log|sign) ?-?(in|on)\b.{0,25}$", r"^\W*(anmelden|einloggen)\b.{0,20}$",
    r"^\W*(se connecter|connexion|s.identifier)\W*$", r"\b(log|sign) ?-?in\b.{0,20}$",
)  # fmt: skip
LOGIN_PATH = _pattern(r"/(log-?in|sign-?in)(/|$|\.|\?|#)")
NOT_LOGIN = _pattern(r"google|facebook|apple|amazon|paypal|twitter|github|microsoft|with (a )?code|passkey|magic")
ACCOUNT = _pattern(
    r"^\W*(my |your )?(account|profile|konto|mein konto|compte|mon compte)\W*$",
    r"returning customer|already (have|registered)",
)
LOGOUT = _pattern(r"\b(log|sign) ?-?(out|off)\b", r"\b(abmelden|ausloggen|déconnexion|se déconnecter)\b")
REGISTER = _pattern(r"\b(register|create|sign ?up|registrieren|konto anlegen|inscri|join|new (customer|account))\b")
RETURNING_CUSTOMER = _pattern(
    r"returning customer|already (have|registered)|i have an? (existing )?(account|password)|my password is|existing customer|log ?in|sign ?in"
)
GUEST = _pattern(
    r"\bguest\b",
    r"\bwithout (an |creating an )?(account|registration|registering|log)",
    r"\bals gast\b",
    r"\bsans compte\b",
    r"\binvité\b",
)
LOGIN_REJECTED = _pattern(
    r"incorrect|invalid (credentials|e-?mail|user|login|password)|wrong|does ?n.?o?t match|do not match|not recogni[sz]ed|unknown (user|account)",
    r"(log|sign) ?-?in (has )?failed|failed to (log|sign)|authentication failed|unable to (log|sign)|could not (log|sign)|couldn.t (log|sign|find)",
    r"too many|locked|please enter a correct|correct (username|e-?mail)|try again|falsch|ungültig|incorrecte?",
)  # fmt: skip
ONE_TIME_CODE = _pattern(
    r"(verification|one.?time|security|confirmation) code",
    r"we (have )?(sent|e-?mailed|texted) you a code",
    r"two.?factor|two.?step|2fa\b",
)
ORDER_CONFIRMED = _pattern(
    r"\bthank(s| you)\b", r"\border\b.{0,40}\b(has been |was |is |been )?(received|placed|confirmed|completed?|successful|accepted|registered|on its way)\b",
    r"\bwe('ve| have) (received|got) your order\b", r"\b(purchase|payment|order) (complete|successful|confirmed)\b", r"\border confirmation\b",
    r"\bvielen dank\b", r"\bbestellung (ist )?(eingegangen|bestätigt)\b", r"\bmerci\b", r"\bcommande (est )?(confirmée|enregistrée)\b",
)  # fmt: skip
ORDER_REJECTED = _pattern(
    r"\b(declined|rejected|refused|could not be (placed|processed|completed)|was not (placed|completed)|failed)\b"
)
OPTION_REQUIRED = _pattern(
    r"\b(please )?(select|choose|pick|specify)\b.{0,40}\b(option|size|colou?r|variant|variation|style|finish|one|a|an|your)\b",
    r"\b(option|size|colou?r|variant|selection) (is |are )?required\b", r"\bbitte (wählen|auswählen)\b", r"\bveuillez (choisir|sélectionner)\b",
    r"\bmust (select|choose)\b",
)  # fmt: skip
COOKIES = _pattern(r"\bcookies?\b", r"\bconsent\b", r"\bprivacy (settings|choices)\b")
REJECT_COOKIES = _pattern(r"\b(reject|decline|refuse|deny|necessary|essential|ablehnen|refuser)\b")
ACCEPT_COOKIES = _pattern(r"\b(accept|agree|allow|got it|ok(ay)?|understood|dismiss|close|akzeptieren|accepter)\b")
TERMS = _pattern(
    r"\b(terms|conditions|agb|privacy policy|withdrawal|cgv|i (have read|agree|accept|confirm))\b",
    r"geschäftsbedingungen|datenschutz|widerruf|\bich (habe|stimme|akzeptiere|bestätige)\b|\bj.(ai lu|accepte)\b",
)
NOT_TERMS = _pattern(
    r"newsletter|marketing|offers|news|subscri|e-?mails from|save (my|this)|remember|insur|gift|donat|protection|warranty|updates"
)
OFFLINE_PAYMENT = _pattern(
    r"cash on delivery|pay on delivery|\bcod\b|on account|invoice|bank transfer|wire|direct debit on file|saved (card|payment)|card on file|ending in",
    r"store credit|account balance|gift balance|wallet balance|no payment|pay (later|at|in store|on)|cheque|check\b|money order|rechnung\b|vorkasse|nachnahme|virement",
)  # fmt: skip
EXTERNAL_PAYMENT = _pattern(
    r"paypal|google pay|apple pay|amazon pay|shop pay|klarna|afterpay|crypto|bitcoin|venmo|affirm|alipay|wechat"
)
CARD = _pattern(
    r"\b(credit|debit)( or debit| / debit)? ?card\b",
    r"\bcard (number|details|payment)\b",
    r"\bvisa\b|\bmastercard\b|\bamex\b",
    r"\bkreditkarte\b|\bcarte (bancaire|de crédit)\b",
)
PAYMENT = _pattern(r"\bpay(ment|ing)?\b|\bzahl|\bpaiement\b")
SHIPPING = _pattern(
    r"\bship(ping|ment)?\b|\bdeliver(y|ed)?\b|\bpostage\b|\bfreight\b|\bversand|\blivraison\b|\bcourier\b|\bpick.?up\b"
)
# "Same as shipping address" is no delivery method.
ADDRESS = _pattern(r"address|adresse")
PAYMENT_ON_DELIVERY = _pattern(
    r"cash on|pay on delivery|\bcod\b|invoice|transfer|wire|cheque|check\b|money order|pay (later|at|in)|rechnung\b|vorkasse|nachnahme|virement|on account"
)

HUMAN_CHECK_HOSTS = re.compile(
    r"recaptcha|hcaptcha|challenges\.cloudflare|turnstile|arkoselabs|funcaptcha|datadome|geo\.captcha|perimeterx|px-cdn"
    r"|3ds|3-?d-?secure|acs\.|cardinalcommerce|securecode|arcot",
    re.IGNORECASE,
)
HUMAN_CHECK_TEXT = _pattern(
    r"\b(verify|confirm|prove|check)( that)? you( are|'re) (a )?(human|not a robot)", r"\bi.?m not a robot\b", r"\bunusual traffic\b",
    r"\b(solve|complete|enter) the (captcha|puzzle|characters|letters)", r"\bare you a (human|robot)\b",
)  # fmt: skip
CARD_HOSTS = re.compile(
    r"stripe|braintree|adyen|checkout\.com|squareup|worldpay|cybersource|hosted.?fields|spreedly", re.IGNORECASE
)
