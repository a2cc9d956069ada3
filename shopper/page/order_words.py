"""Words of an order, a purchase or a payment in languages that no other rule knows: vetoes, never a reason to click.

Structure does not show what a click costs (docs/decisions/0134): a language model may not choose a button with one of
these. They are stems without accents, and rather too many: a button that is vetoed is not clicked.
"""

import re
import unicodedata

_LATIN = r"""
    order \bbuy \bpay purchas confirm submit complet finish finali \bbook agree accept subscrib \btrial
    kauf bestell zahl command achet valider \bregler
    \bpedi \bcompr \bpag(a|o|u)\w*\b encomend encarreg \btramit \bsuscri contrat
    \bordin acquist conferm \bconclu \biscri comand cumpar \bplat(a|es|i)
    bestel bestal bestil \bkoop \bkop(a|er|en)?\b \bkjop \bkob\b betal afreken bekraft bekreft bevestig
    slutfor fullfor gennemfor gjennomfor handla \bpanta \bkaup greida
    \btila(a|us) \bosta\b \bmaksa vahvista \btelli kinnita pasut \bpirk maksat apstiprin uzsak moket patvirtin
    zamaw zamow \bkup zaplac \bplac potw objedn zavazn zaplat potvr potrd naroc naruc porosit \bblej
    rendel vasarl \bfizet veglegesit siparis satin\sal \bode(me)?\b onayla tamamla sifaris odenis
    \bpesan \bbeli \bbayar konfirm dat\shang \bmua\b thanh\stoan xac\snhan \bbilhin \bnunua \blipa\b
"""
_OTHER_SCRIPTS = """
    заказ оформ купи покуп куплю оплат плати плаћ подтвер замов придб сплат підтвер поръч потвър потврд
    нарач наруч тапсырыс заверш
    παραγγελ αγορ πληρω επιβεβαι ολοκληρ պատվ գնել վճար შეკვეთ ყიდვ გადახდ
    הזמנ הזמן קנ רכיש לרכו תשלום שלם לאשר אישור طلب شرا اشتر دفع تأكيد سفارش خرید پرداخت تایید
    आर्डर ऑर्डर खरीद भुगतान पुष्टि অর্ডার কিনুন পেমেন্ট ஆர்டர் வாங்கு สั่งซื้อ ซื้อ ชำระ ยืนยัน
    注文 購入 買 支払 確定 決済 申し込 申込 确认 確認 下单 下單 订单 訂單 购买 購買 买 支付 付款 提交
    结算 結算 結帳 주문 구매 결제 구입 확인
"""  # noqa: RUF001
# Letters that no accent distinguishes.
_LETTERS = str.maketrans("łøđıæœə", "lodiaoa")


def names_order(text: str) -> bool:
    """Return whether a text has a word of an order, a purchase or a payment in one of the languages."""
    return _ORDERS.search(_plain(text)) is not None


def _plain(text: str) -> str:
    """Return a text in lower case without accents and invisible characters, so that each letter has one spelling."""
    whole = unicodedata.normalize("NFKD", text.casefold())
    kept = (letter for letter in whole if unicodedata.category(letter) not in ("Mn", "Cf"))
    return "".join(kept).translate(_LETTERS)


_ORDERS = re.compile("|".join((*_LATIN.split(), *_plain(_OTHER_SCRIPTS).split())))
