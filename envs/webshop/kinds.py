"""The kinds of things that the generated shop sells, and the words that describe them.

An attribute is written `as a catalogue has it = as a person says it`; without the second, people use the first.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of product.

    Attributes:
        category: one of the shop's five.
        query: what finds the kind.
        path: its place in the shop, levels between ">".
        heads: what it is called.
        attributes: what can be true of it, see above.
        options: kinds of options that it can come in, keys of `OPTIONS`.
        low, high: dollars.
    """

    category: str
    query: str
    path: str
    heads: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    low: float
    high: float


_COLORS = "black white navy red green grey pink blue beige burgundy khaki purple teal yellow brown orange".split()

OPTIONS: dict[str, tuple[str, ...]] = {
    "color": tuple(_COLORS),
    "color name": tuple(f"{shade} {color}" for color in _COLORS[:10] for shade in ("matte", "pale", "deep")),
    "size": ("x-small", "small", "medium", "large", "x-large", "xx-large", "3x-large"),
    "shoe size": tuple(f"{size / 2:g}" for size in range(10, 25)),
    "pack": tuple(f"{ounces} ounce (pack of {n})" for ounces in (2, 4, 8, 12, 16) for n in (1, 2, 3, 6)),
    "flavor name": ("sea salt", "dark chocolate", "vanilla", "peanut butter", "honey", "cinnamon", "chili", "lemon"),
    "scent": ("lavender", "unscented", "coconut", "citrus", "rose water", "eucalyptus", "green tea", "jasmine"),
    "length": tuple(f"{feet} feet" for feet in (1, 3, 6, 10, 15, 25)),
    "window size": tuple(f'{wide}"w x {long}"l' for wide in (42, 52, 84, 100) for long in (45, 63, 84, 96)),
    "model": ("iphone 13", "iphone 12 mini", "galaxy s21", "pixel 6", "iphone 13 pro max", "moto g power"),
}
"""Kind of option to its values."""

_SETS: dict[str, str] = {
    "clothes": "machine wash = that can be machine washed; hand wash = that should be hand washed; long sleeve = that "
    "has long sleeves; short sleeve = with short sleeves; elastic waist = with an elastic waistband; "
    "classic fit; cotton spandex; tumble dry = that can be tumble dried; button closure = that closes with "
    "buttons; moisture wicking = that wicks moisture",
    "shoes": "rubber sole = with a rubber sole; arch support = that supports the arch; memory foam = with memory "
    "foam; lace up = that laces up; slip resistant = that does not slip; open toe; faux fur = lined with "
    "faux fur; steel toe = with a toe of steel; water resistant = that keeps water out",
    "hair": "sulfate free = without sulfates; paraben free = without parabens; cruelty free; argan oil = with argan "
    "oil; dry hair = made for dry hair; hair growth = that helps hair growth; color treated = for color "
    "treated hair; tea tree = with tea tree; damaged hair = that repairs damaged hair",
    "skin": "fragrance free = without fragrance; sensitive skin = for sensitive skin; hyaluronic acid; alcohol "
    "free; dermatologist tested = tested by dermatologists; coconut oil = with coconut oil; fine lines = "
    "for fine lines; anti aging; clinically proven; dark circles = against dark circles",
    "food": "gluten free = without gluten; non gmo; low sodium = low in sodium; sugar free = without sugar; dairy "
    "free = without dairy; plant based; usda organic; artificial colors = without artificial colors; "
    "resealable bag = in a resealable bag; individually wrapped; high protein = rich in protein; kosher "
    "certified",
    "sound": "water resistant = that can get wet; stereo sound = with stereo sound; hands free; fast charging = that "
    "charges fast; noise cancelling = that cancels noise; long lasting battery; usb port = with a usb port; "
    "carrying case; plug play = plug and play; heavy duty",
    "gadget": "tempered glass; easy install = easy to install; wireless charging = that allows wireless charging; "
    "gold plated; high definition; aluminum alloy = made of aluminum alloy; scratch resistant = that "
    "resists scratches; ultra hd; high speed = with high speed; case friendly; night vision = that sees at "
    "night; motion detection",
    "room": "machine washable = that can go in the washer; easy clean = easy to clean; assembly required; solid "
    "wood; living room = for the living room; dining room = for the dining room; faux leather = of faux "
    "leather; space saving = that saves space; metal legs = on metal legs; contemporary design; energy "
    "efficient; double sided; super soft; stainless steel = of stainless steel",
}
"""What can be true of some kinds of things; see above."""

_ROOTS = {
    "men": "Clothing, Shoes & Jewelry > Men",
    "women": "Clothing, Shoes & Jewelry > Women",
    "beauty": "Beauty & Personal Care",
    "foods": "Grocery & Gourmet Food",
    "devices": "Electronics",
    "home": "Home & Kitchen",
}
# category | query | root and place | heads | set of attributes | kinds of options | dollars
_TABLE = """
fashion | men's dress shirts | men > Shirts | dress shirt, oxford shirt | clothes | color, size | 18-60
fashion | women's dresses | women > Dresses | midi dress, wrap dress | clothes | color, size | 15-65
fashion | women's leggings | women > Active | leggings, yoga pants | clothes | color name, size | 12-50
fashion | men's shorts | men > Shorts | cargo shorts, swim trunks | clothes | color, size | 14-45
fashion | women's sandals | women > Shoes | sandals, slides | shoes | color, shoe size | 20-90
fashion | men's boots | men > Shoes | work boots, chukka boots | shoes | color, shoe size | 35-150
beauty | shampoo | beauty > Hair Care | shampoo, conditioner | hair | scent, pack | 6-38
beauty | hair masks | beauty > Hair Care > Treatments | hair mask, hair serum | hair | scent | 7-42
beauty | body lotions | beauty > Skin Care > Body | body lotion, body butter | skin | scent, pack | 7-35
beauty | eye creams | beauty > Skin Care > Eyes | eye cream, eye gel | skin | pack | 9-60
beauty | lip balms | beauty > Lips | lip balm, lip mask | skin | flavor name | 4-25
grocery | chips | foods > Snack Foods | veggie chips, tortilla chips | food | flavor name, pack | 4-36
grocery | nutrition bars | foods > Bars | protein bars, granola bars | food | flavor name | 8-48
grocery | ground coffee | foods > Beverages | ground coffee, instant coffee | food | flavor name | 7-45
grocery | nut butters | foods > Spreads | almond butter, cashew butter | food | pack | 6-40
electronics | bluetooth speakers | devices > Audio | bluetooth speaker, soundbar | sound | color | 18-160
electronics | headphones | devices > Headphones | earbuds, headset | sound | color | 12-190
electronics | hdmi cables | devices > Cables | hdmi cable, adapter cable | gadget | length | 5-40
electronics | phone cases | devices > Cases | phone case, wallet case | gadget | color, model | 6-35
electronics | security cameras | devices > Cameras | security camera, doorbell | gadget | color | 25-180
garden | curtains | home > Windows | curtains, sheer drapes | room | color, window size | 15-95
garden | throw pillows | home > Bedding | throw pillow, pillow cover | room | color name | 8-45
garden | bar stools | home > Furniture | bar stool, counter stool | room | color | 60-320
garden | nightstands | home > Furniture > Bedroom | nightstand, end table | room | color | 40-1200
"""


def _read(row: str) -> Kind:
    category, query, place, heads, shared, options, prices = row.split(" | ")
    root, _, rest = place.partition(" > ")
    low, high = map(float, prices.split("-"))
    return Kind(
        category=category,
        query=query,
        path=f"{_ROOTS[root]} > {rest}".replace(" > ", " \u203a "),
        heads=tuple(heads.split(", ")),
        attributes=tuple(_SETS[shared].split("; ")),
        options=tuple(options.split(", ")),
        low=low,
        high=high,
    )


KINDS: tuple[Kind, ...] = tuple(map(_read, _TABLE.strip().split("\n")))

TITLES = (
    "{brand} {head}, {first}{noise}",
    "{brand} {first} {head} with {second}{noise}",
    "{head} by {brand} - {first} & {second}{noise}",
    "NEW {brand} {head} {first}, {second}, {third}{noise}",
)
NOISE: dict[str, tuple[str, ...]] = {
    "": (),
    " (2022 New)": (),
    " - Perfect Gift for Mom, Dad": ("gift", "mom", "dad"),
    " | Upgraded": (),
    ", 1 Count": ("count",),
    " for Home, Travel, Office": ("home", "travel", "office"),
}
"""What sellers add to a title, and the nouns in it."""
REQUESTS = (
    "i am looking for {article} {head}{with_options}, {attributes}",
    "i need {article} {head}{with_options}. it should be one {attributes}",
    "find me {article} {head} for my sister, {attributes}{with_options}",
    "i would like to buy {article} {head}, {attributes}{with_options}",
    "can you find {article} {head}{with_options}? {attributes} please",
    "show me {query}, {attributes}{with_options}",
)
WITH_OPTION = {
    "color": " in {}",
    "color name": " in {}",
    "size": " in size {}",
    "shoe size": " in size {}",
    "pack": ", {}",
    "flavor name": " with {} flavor",
    "scent": " with {} scent",
    "length": ", {} long",
    "window size": " that measures {}",
    "model": " for {}",
}
"""Kind of option to how a person asks for a value of it."""
