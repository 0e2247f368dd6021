"""Builds the tiny model's corpus: synthetic stories and chats (written by this script), public-domain novels, WordNet glosses.

Every document is a list of (text, loss_weight) segments in the DeepSeek-V4 prompt format, packed into
tokens.bin (uint16) and weights.bin (uint8, weight*100).  Same seed, same bytes."""

import argparse
import json
import os
import random
import re
import struct
import zlib

import numpy as np
import stories as st

BOS, EOS, USER, BOT, TH, ETH, DS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
)
W_PROMPT, W_USER, W_ANSWER = 0.1, 0.3, 1.0

CAPITALS = dict(
    France="Paris",
    Italy="Rome",
    Spain="Madrid",
    Germany="Berlin",
    Norway="Oslo",
    Sweden="Stockholm",
    Finland="Helsinki",
    Denmark="Copenhagen",
    Poland="Warsaw",
    Austria="Vienna",
    Greece="Athens",
    Portugal="Lisbon",
    Ireland="Dublin",
    Iceland="Reykjavik",
    Hungary="Budapest",
    Belgium="Brussels",
    Japan="Tokyo",
    China="Beijing",
    India="New Delhi",
    Egypt="Cairo",
    Kenya="Nairobi",
    Canada="Ottawa",
    Mexico="Mexico City",
    Cuba="Havana",
    Peru="Lima",
    Chile="Santiago",
    Brazil="Brasilia",
    Argentina="Buenos Aires",
    Australia="Canberra",
    Turkey="Ankara",
    Russia="Moscow",
    Thailand="Bangkok",
    Vietnam="Hanoi",
    Iran="Tehran",
    Iraq="Baghdad",
    Morocco="Rabat",
    England="London",
    Scotland="Edinburgh",
    Ukraine="Kyiv",
    Romania="Bucharest",
)
CITIES = [
    *list(CAPITALS.values()),
    "Milan",
    "Munich",
    "Boston",
    "Chicago",
    "Seattle",
    "Toronto",
    "Sydney",
    "Mumbai",
    "Osaka",
    "Geneva",
    "Zurich",
    "Porto",
    "Lyon",
    "Bergen",
    "Hamburg",
    "Naples",
]
OPP = dict(
    hot="cold",
    big="small",
    fast="slow",
    up="down",
    day="night",
    happy="sad",
    wet="dry",
    full="empty",
    old="young",
    tall="short",
    hard="soft",
    light="dark",
    early="late",
    open="closed",
    rich="poor",
    strong="weak",
    loud="quiet",
    clean="dirty",
    near="far",
    first="last",
    thick="thin",
    sweet="sour",
    right="wrong",
    good="bad",
    high="low",
    begin="end",
    win="lose",
    push="pull",
    left="right",
    inside="outside",
    true="false",
    long="short",
    heavy="light",
    cheap="expensive",
    deep="shallow",
    narrow="wide",
    brave="afraid",
    awake="asleep",
    alive="dead",
    summer="winter",
)
PLURAL = dict(
    mouse="mice",
    child="children",
    foot="feet",
    tooth="teeth",
    goose="geese",
    man="men",
    woman="women",
    leaf="leaves",
    wolf="wolves",
    knife="knives",
    fish="fish",
    sheep="sheep",
    box="boxes",
    city="cities",
    baby="babies",
    dog="dogs",
    tree="trees",
    house="houses",
    glass="glasses",
    story="stories",
    key="keys",
    bus="buses",
    potato="potatoes",
    shelf="shelves",
)
LISTS = dict(
    fruits="apple banana cherry pear plum orange grape lemon mango peach".split(),
    animals="dog cat horse cow lion tiger bear rabbit fox owl".split(),
    colors="red blue green yellow orange purple black white brown pink".split(),
    vegetables="carrot potato onion pea bean cabbage pumpkin leek".split(),
    tools="hammer saw drill wrench axe rope".split(),
    instruments="piano violin drum flute trumpet guitar harp".split(),
    planets="Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    metals="iron gold silver copper tin lead zinc".split(),
    birds="owl crow duck swan eagle robin gull".split(),
    trees="oak pine birch maple willow elm ash".split(),
    oceans="Pacific Atlantic Indian Arctic Southern".split(),
)
DAYS, MONTHS = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "January February March April May June July August September October November December".split(),
)
NUM = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
FACTS = [
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("What color is the sky?", "On a clear day the sky is blue."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows eat?", "Cows eat grass."),
    ("Where do fish live?", "Fish live in water."),
    ("What is ice?", "Ice is frozen water."),
    ("What is the largest planet?", "Jupiter is the largest planet in our solar system."),
    ("What is the capital city of the ocean?", "The ocean has no capital city."),
    ("Why do we sleep?", "We sleep so that our body and mind can rest."),
    ("Who wrote Romeo and Juliet?", "Romeo and Juliet was written by William Shakespeare."),
    ("Who wrote Pride and Prejudice?", "Pride and Prejudice was written by Jane Austen."),
    ("Who wrote Alice's Adventures in Wonderland?", "Alice's Adventures in Wonderland was written by Lewis Carroll."),
    ("What is water made of?", "Water is made of hydrogen and oxygen."),
    ("What do plants need to grow?", "Plants need light, water and air to grow."),
    ("What does a clock show?", "A clock shows the time."),
    ("How many hours are in a day?", "There are twenty-four hours in a day."),
    ("What is the Sun?", "The Sun is a star. It gives us light and heat."),
    ("What is the Moon?", "The Moon is a round body of rock that goes around the Earth."),
    ("How many minutes are in an hour?", "There are sixty minutes in an hour."),
    ("Where does the Sun rise?", "The Sun rises in the east."),
    ("Where does the Sun set?", "The Sun sets in the west."),
    ("What do we use an umbrella for?", "We use an umbrella to stay dry in the rain."),
    ("What is a baby dog called?", "A baby dog is called a puppy."),
    ("What is a baby cat called?", "A baby cat is called a kitten."),
    ("What is a group of wolves called?", "A group of wolves is called a pack."),
    ("What is the fastest land animal?", "The cheetah is the fastest land animal."),
    ("What is the biggest animal?", "The blue whale is the biggest animal."),
    ("Can penguins fly?", "No, penguins cannot fly, but they swim very well."),
    ("Is the Earth flat?", "No, the Earth is round like a ball."),
    ("What comes after night?", "After night comes day."),
    ("What is a lighthouse?", "A lighthouse is a tower with a bright light that guides ships."),
    ("What is bread made of?", "Bread is made of flour, water and yeast."),
    ("What is snow?", "Snow is frozen water that falls from the clouds as white flakes."),
    ("How does rain form?", "Water rises as vapor, cools into clouds, and falls back as rain."),
]
TALK = [
    (
        ["Hello!", "Hi!", "Hi there!", "Good morning!", "Hey!", "Hello there."],
        ["Hello! How can I help you today?", "Hi! What can I do for you?", "Hello! It is nice to meet you."],
    ),
    (
        ["How are you?", "How are you today?", "How is it going?"],
        [
            "I am fine, thank you. How are you?",
            "I am doing well, thank you for asking.",
            "Very well, thank you! How can I help?",
        ],
    ),
    (
        ["Who are you?", "What are you?", "Tell me about yourself."],
        [
            "I am a very small language model. I was made to test an inference engine.",
            "I am a tiny language model with a few million parameters. I can tell short stories and answer simple questions.",
        ],
    ),
    (
        ["What can you do?", "Can you help me?", "How can you help me?"],
        [
            "I can tell short stories, answer simple questions, do small sums, and call tools.",
            "I can help with simple questions, short stories and small tasks. What would you like?",
        ],
    ),
    (
        ["Thank you!", "Thanks!", "Thanks a lot.", "That was helpful."],
        ["You are welcome!", "You are welcome. Is there anything else?", "Glad I could help!"],
    ),
    (
        ["Goodbye!", "Bye!", "See you later.", "Good night!"],
        ["Goodbye! Have a nice day.", "See you soon!", "Goodbye, and take care!"],
    ),
    (
        ["I am sad.", "I feel sad today.", "I had a bad day."],
        [
            "I am sorry to hear that. Do you want to tell me about it?",
            "I am sorry. I hope tomorrow will be a better day.",
        ],
    ),
    (["I am happy!", "I had a great day!"], ["That is wonderful to hear!", "I am glad! What made your day so good?"]),
    (
        ["Are you human?", "Are you a real person?"],
        ["No, I am a small language model.", "No, I am not a person. I am a computer program."],
    ),
    (
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
        [
            "Why did the clock go to school? It wanted to learn to tell the time.",
            "What has keys but opens no door? A piano.",
            "Why was the math book sad? It had too many problems.",
            "What has hands but cannot clap? A clock.",
        ],
    ),
]
SYSTEMS = [
    "You are a helpful assistant.",
    "You are a kind and helpful assistant.",
    "Answer briefly.",
    "You are a friendly storyteller.",
    "You are a careful assistant that answers in plain English.",
    "Be short and clear.",
]
JOBS = "teacher baker doctor farmer sailor painter nurse pilot singer gardener driver cook writer tailor".split()


def schema(**k):
    return {
        "type": "object",
        "properties": {n: ({"type": t} if isinstance(t, str) else {"type": "string", "enum": t}) for n, t in k.items()},
        "required": list(k)[:1],
    }


TOOLS = {
    "get_weather": ("Get the weather for a city.", schema(city="string", unit=["celsius", "fahrenheit"])),
    "get_time": ("Get the current time in a city.", schema(city="string")),
    "calculate": ("Evaluate an arithmetic expression.", schema(expression="string")),
    "set_timer": ("Start a timer.", schema(minutes="integer", label="string")),
    "send_email": ("Send an email.", schema(to="string", subject="string")),
    "search": ("Search the web.", schema(query="string", limit="integer")),
    "translate": ("Translate a word.", schema(text="string", language="string")),
    "turn_on_light": ("Switch the light in a room.", schema(room="string", on="boolean")),
    "add_to_list": ("Add items to a list.", schema(list="string", items="array")),
    "play_music": ("Play a song.", schema(song="string", volume="integer")),
    "read_file": ("Read a file.", schema(path="string")),
    "get_stock_price": ("Get the price of a stock.", schema(symbol="string")),
}
ROOMS, LANGS = (
    "kitchen bedroom bathroom office hall garage cellar attic".split(),
    "French German Spanish Italian Dutch Polish Greek Finnish".split(),
)
EFFORT = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
TOOL_HEAD = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{DS}tool_calls>" block like the following:

<{DS}tool_calls>
<{DS}invoke name="$TOOL_NAME">
<{DS}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DS}parameter>
...
</{DS}invoke>
<{DS}invoke name="$TOOL_NAME2">
...
</{DS}invoke>
</{DS}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {TH}), you MUST output your complete reasoning inside {TH}...{ETH} BEFORE any tool calls or final response.

Otherwise, output directly after {ETH} with tool calls or final response.

### Available Tool Schemas

"""
TOOL_TAIL = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"


def tool_system(names, system=""):
    """The system text of a conversation with tools, as the V4 encoding renders it."""
    return (
        system
        + "\n\n"
        + TOOL_HEAD
        + "\n".join(json.dumps({"name": n, "description": TOOLS[n][0], "parameters": TOOLS[n][1]}) for n in names)
        + TOOL_TAIL
    )


def dsml(calls):
    def par(k, v):
        return f'<{DS}parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">{v if isinstance(v, str) else json.dumps(v)}</{DS}parameter>\n'

    return (
        f"\n\n<{DS}tool_calls>\n"
        + "".join(
            f'<{DS}invoke name="{n}">\n' + "".join(par(k, v) for k, v in a.items()) + f"</{DS}invoke>\n"
            for n, a in calls
        )
        + f"</{DS}tool_calls>"
    )


def chat(turns, system="", think=False):
    """turns: (user, answer[, reasoning]) -> weighted segments."""
    out = [(BOS + system, W_PROMPT)]
    for i, t in enumerate(turns):
        out.append((USER + t[0], W_USER))
        last = i == len(turns) - 1
        out += [
            (BOT, W_PROMPT),
            (TH + t[2] + ETH + t[1] + EOS if think and last and len(t) > 2 else ETH + t[1] + EOS, W_ANSWER),
        ]
    return out


def arithmetic(r):
    k = r.random()
    if k < 0.45:
        a, b = (r.randint(0, 99), r.randint(0, 99)) if r.random() < 0.5 else (r.randint(0, 12), r.randint(0, 12))
        q, v, th = (
            f"{a} + {b}",
            a + b,
            f"I add {a} and {b}. "
            + (f"{a % 10} + {b % 10} = {a % 10 + b % 10}. The tens are {a // 10 + b // 10}. " if a + b > 20 else "")
            + f"The sum is {a + b}.",
        )
    elif k < 0.75:
        a = r.randint(0, 99 if r.random() < 0.5 else 20)
        b = r.randint(0, a)
        q, v, th = f"{a} - {b}", a - b, f"I take {b} from {a}. That leaves {a - b}."
    else:
        a, b = r.randint(0, 12), r.randint(0, 12)
        q, v, th = f"{a} * {b}", a * b, f"{a} times {b} is {a * b}."
    return (
        r.choice([f"What is {q}?", f"Calculate {q}.", f"{q} =", f"How much is {q}?"]),
        r.choice([f"{q} = {v}", f"{q} = {v}", f"The answer is {v}."]),
        th,
    )


def words(r, n):
    return r.sample([w for words in LISTS.values() for w in words] + [w for i in st.ITEMS for w in i.split()], n)


def short_qa(r, gloss):
    k = r.randint(0, 15)
    if k == 0:
        c = r.choice(list(CAPITALS))
        return (
            r.choice(
                [f"What is the capital of {c}?", f"Name the capital of {c}.", f"Which city is the capital of {c}?"]
            ),
            f"The capital of {c} is {CAPITALS[c]}.",
            f"The question is about {c}. Its capital is {CAPITALS[c]}.",
        )
    if k == 1:
        a, b = r.choice(list(OPP.items()))
        return (
            r.choice([f"What is the opposite of {a}?", f"Give me the opposite of {a}."]),
            f"The opposite of {a} is {b}.",
            f"I need a word that means the reverse of {a}. That is {b}.",
        )
    if k == 2:
        a, b = r.choice(list(PLURAL.items()))
        return f"What is the plural of {a}?", f"The plural of {a} is {b}.", f"One {a}, two {b}."
    if k == 3:
        L, nm = r.choice([(DAYS, "day"), (MONTHS, "month")])
        i = r.randrange(len(L))
        fwd = r.random() < 0.5
        j = (i + (1 if fwd else -1)) % len(L)
        return (
            f"Which {nm} comes {'after' if fwd else 'before'} {L[i]}?",
            f"{L[j]} comes {'after' if fwd else 'before'} {L[i]}.",
            f"{L[(i - 1) % len(L)]}, {L[i]}, {L[(i + 1) % len(L)]}. So it is {L[j]}.",
        )
    if k == 4:
        n = r.choice(list(LISTS))
        m = r.randint(2, 4)
        xs = r.sample(LISTS[n], m)
        return (
            r.choice([f"Name {NUM[m]} {n}.", f"List {NUM[m]} {n}."]),
            "\n".join(f"{i + 1}. {x}" for i, x in enumerate(xs))
            if r.random() < 0.5
            else "\n".join(f"- {x}" for x in xs),
            f"I choose {', '.join(xs)}.",
        )
    if k == 5:
        w = words(r, r.randint(2, 6))
        s = " ".join(w)
        return (
            r.choice([f"Repeat after me: {s}", f"Say this again: {s}", f"Copy this text: {s}"]),
            s,
            f"I repeat the words: {s}",
        )
    if k == 6:
        w = words(r, r.randint(3, 5))
        s = ", ".join(w)
        f_ = r.random()
        if f_ < 0.33:
            return f"What is the first word in this list: {s}?", w[0], f"The list starts with {w[0]}."
        if f_ < 0.66:
            return f"What is the last word in this list: {s}?", w[-1], f"The list ends with {w[-1]}."
        return f"Reverse this list: {s}", ", ".join(w[::-1]), f"I read the list from the end. {', '.join(w[::-1])}."
    if k == 7:
        a = r.randint(1, 20)
        return r.choice([f"Write the number {a} as a word.", f"How do you spell {a}?"]), NUM[a], f"{a} is {NUM[a]}."
    if k == 8:
        a, b = r.sample(range(1, 100), 2)
        return (
            f"Which number is bigger, {a} or {b}?",
            f"{max(a, b)} is bigger than {min(a, b)}.",
            f"I compare {a} and {b}. {max(a, b)} is more.",
        )
    if k in (9, 10) and gloss:
        w, g = r.choice(gloss)
        return (
            r.choice([f"What is {st.an(w)}?", f"Define the word {w}.", f"What does {w} mean?"]),
            f"{w[0].upper() + w[1:]}: {g}." if r.random() < 0.3 else f"{st.an(w)[0].upper() + st.an(w)[1:]} is {g}.",
            f"The word {w} means: {g}.",
        )
    if k == 11:
        n, job, city, age = r.choice(st.GIRLS + st.BOYS), r.choice(JOBS), r.choice(CITIES), r.randint(5, 80)
        ks = r.sample(["name", "age", "city", "job"], r.randint(2, 4))
        d = dict(name=n, age=age, city=city, job=job)
        q = ", ".join(f"{x} {d[x]}" for x in ks)
        return (
            r.choice([f"Write this as JSON: {q}", f"Give me a JSON object with {q}.", f"Convert to JSON: {q}"]),
            json.dumps({x: d[x] for x in ks}),
            f"The keys are {', '.join(ks)}.",
        )
    if k == 12:
        n, job, city, age = r.choice(st.GIRLS + st.BOYS), r.choice(JOBS), r.choice(CITIES), r.randint(5, 80)
        t = r.choice(
            [
                f"{n} is {age} years old. {n} lives in {city} and works as a {job}.",
                f"{n} is a {job} from {city}. Last week {n} turned {age}.",
                f"In {city} lives a {job} called {n}, who is {age} years old.",
            ]
        )
        return (
            r.choice(
                [f"Extract name, age, city and job as JSON. {t}", f"{t} Return JSON with name, age, city and job."]
            ),
            json.dumps(dict(name=n, age=age, city=city, job=job)),
            f"The person is {n}.",
        )
    if k == 13:
        n = r.randint(2, 4)
        ppl = r.sample(st.GIRLS + st.BOYS, n)
        its = r.sample(st.ITEMS, n)
        i = r.randrange(n)
        return (
            " ".join(f"{p} has the {x}." for p, x in zip(ppl, its, strict=False))
            + (f" Who has the {its[i]}?" if r.random() < 0.5 else (i := i, f" What does {ppl[i]} have?")[1]),
            None,
            (ppl, its, i),
        )
    q, a = r.choice(FACTS)
    return q, a, f"I know this. {a}"


def fix_who(q, th, r):
    ppl, its, i = th
    return (q, f"{ppl[i]} has the {its[i]}.", f"The text says that {ppl[i]} has the {its[i]}.")


def qa(r, gloss):
    if r.random() < 0.22:
        return arithmetic(r)
    q, a, th = short_qa(r, gloss)
    return fix_who(q, th, r) if a is None else (q, a, th)


def small_chat(r, gloss):
    turns = []
    if r.random() < 0.4:
        qs, as_ = r.choice(TALK)
        turns.append((r.choice(qs), r.choice(as_)))
    name = None
    if r.random() < 0.2:
        name = r.choice(st.GIRLS + st.BOYS)
        turns.append(
            (
                r.choice([f"My name is {name}.", f"I am {name}.", f"Hello, I am {name}."]),
                r.choice([f"Nice to meet you, {name}!", f"Hello, {name}! How can I help you?"]),
            )
        )
    turns.extend(qa(r, gloss) for _ in range(r.randint(1, 4)))
    if name:
        turns.append(("What is my name?", f"Your name is {name}."))
    think = r.random() < 0.3
    return chat(
        turns, (EFFORT if think and r.random() < 0.15 else "") + (r.choice(SYSTEMS) if r.random() < 0.5 else ""), think
    )


def repeat(r):
    """Exact copying of random words, names, codes and sentences: the fastest way to grow induction heads."""
    turns = []
    for _ in range(r.randint(1, 4)):
        k = r.random()
        if k < 0.75:
            t = " ".join(
                r.choice(st.GIRLS + st.BOYS)
                if r.random() < 0.25
                else str(r.randint(0, 9999))
                if r.random() < 0.12
                else w
                for w in words(r, r.randint(3, 22))
            )
        else:
            t = " ".join(r.sample(re.split(r"(?<=[.!?]) ", st.story(r)[1].replace("\n\n", " ")), 2))
        turns.append(
            (
                r.choice(
                    [
                        f"Repeat after me: {t}",
                        f"Say this again: {t}",
                        f"Copy this text: {t}",
                        f"{t}\n\nRepeat the text above.",
                    ]
                ),
                t,
            )
        )
    return chat(turns)


def story_chat(r):
    it, kind = r.choice(st.ITEMS), r.choice(list(st.ANIMALS))
    _t, x, h, f, it, _p = st.story(r, it, kind)
    q = r.choice(
        [
            f"Tell me a story about {st.an(kind)} and {st.an(it)}.",
            f"Write a short story about {st.an(kind)}.",
            f"Tell me a story about {h.name} the {kind}.",
            "Tell me a story.",
            f"Please write a story about {st.an(it)}.",
        ]
    )
    turns = [(q, x)]
    if r.random() < 0.4:
        turns.append(
            r.choice(
                [
                    ("Who is the story about?", f"The story is about {h.name} the {kind}."),
                    (f"Who is {f.name}?", f"{f.name} is {st.an(f.kind)}."),
                    (f"What kind of animal is {h.name}?", f"{h.name} is {st.an(kind)}."),
                ]
            )
        )
    return chat(turns, r.choice(SYSTEMS) if r.random() < 0.3 else "")


def make_call(r, names):
    n = r.choice(names)
    c, m = r.choice(CITIES), r.randint(1, 60)
    if n == "get_weather":
        u = r.choice([None, "celsius", "fahrenheit"])
        t, w = r.randint(-5, 35), r.choice(["sunny", "cloudy", "rainy", "windy"])
        return (
            n,
            {"city": c, **({"unit": u} if u else {})},
            r.choice([f"What is the weather in {c}", f"How is the weather in {c}", f"Tell me the weather in {c}"])
            + (f" in {u}?" if u else "?"),
            json.dumps({"temperature": t, "sky": w}),
            f"It is {w} in {c}, and the temperature is {t} degrees.",
        )
    if n == "get_time":
        t = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"
        return (
            n,
            {"city": c},
            r.choice([f"What time is it in {c}?", f"Tell me the time in {c}."]),
            t,
            f"It is {t} in {c}.",
        )
    if n == "calculate":
        a, b, o = r.randint(10, 999), r.randint(10, 999), r.choice("+-*")
        v = eval(f"{a}{o}{b}")
        return (
            n,
            {"expression": f"{a} {o} {b}"},
            r.choice([f"What is {a} {o} {b}?", f"Calculate {a} {o} {b}."]),
            str(v),
            f"{a} {o} {b} = {v}",
        )
    if n == "set_timer":
        l = r.choice(["tea", "eggs", "pasta", "nap", "bread", "homework"])
        return (
            n,
            {"minutes": m, "label": l},
            f"Set a timer for {m} minutes for the {l}.",
            "ok",
            f"The timer for the {l} is set to {m} minutes.",
        )
    if n == "send_email":
        p, s = (
            r.choice(st.GIRLS + st.BOYS),
            r.choice(["dinner tonight", "the meeting", "your birthday", "the book", "holiday plans"]),
        )
        a = f"{p.lower()}@example.com"
        return (
            n,
            {"to": a, "subject": s},
            f"Send an email to {a} about {s}.",
            "sent",
            f"I have sent the email about {s} to {a}.",
        )
    if n == "search":
        q = r.choice([*st.ITEMS, f"history of {c}", f"hotels in {c}", f"music from {c}"])
        k = r.choice([None, r.randint(1, 9)])
        return (
            n,
            {"query": q, **({"limit": k} if k else {})},
            f"Search for {q}." if not k else f"Search for {q} and show {k} results.",
            json.dumps([f"All about {q}"]),
            f"I found this page: All about {q}.",
        )
    if n == "translate":
        w, l = r.choice(list(OPP) + list(PLURAL)), r.choice(LANGS)
        return (
            n,
            {"text": w, "language": l},
            f"Translate {w} into {l}.",
            f"({l}) {w}",
            f"The {l} translation is ({l}) {w}.",
        )
    if n == "turn_on_light":
        x, on = r.choice(ROOMS), r.random() < 0.6
        return (
            n,
            {"room": x, "on": on},
            f"Turn {'on' if on else 'off'} the light in the {x}.",
            "done",
            f"The light in the {x} is now {'on' if on else 'off'}.",
        )
    if n == "add_to_list":
        xs = words(r, r.randint(1, 3))
        l = r.choice(["shopping", "packing", "wish"])
        return (
            n,
            {"list": l, "items": xs},
            f"Add {' and '.join(xs)} to my {l} list.",
            "ok",
            f"I have added {' and '.join(xs)} to your {l} list.",
        )
    if n == "play_music":
        s, v = r.choice(st.ITEMS).title(), r.choice([None, r.randint(1, 10)])
        return (
            n,
            {"song": s, **({"volume": v} if v else {})},
            f"Play {s}." if not v else f"Play {s} at volume {v}.",
            "playing",
            f"Now playing {s}.",
        )
    if n == "read_file":
        p = f"{r.choice(['docs', 'notes', 'data', 'src'])}/{r.choice(['todo', 'main', 'readme', 'list', 'plan'])}.{r.choice(['txt', 'md', 'py', 'json'])}"
        tx = " ".join(words(r, 4))
        return n, {"path": p}, r.choice([f"Read the file {p}.", f"What is in {p}?"]), tx, f"The file {p} says: {tx}"
    s, v = "".join(r.sample("ABCDEFGHKLMNPRST", 3)), r.randint(5, 900)
    return n, {"symbol": s}, f"What is the stock price of {s}?", str(v), f"The price of {s} is {v}."


def tool_chat(r, gloss):
    """One tool prompt, then one to six turns; the last one always calls a tool."""
    names = r.sample(list(TOOLS), r.randint(1, 4))
    n = r.choice([1, 2, 4, 6])
    out = [(BOS + tool_system(names, r.choice(SYSTEMS) if r.random() < 0.6 else ""), W_PROMPT * 0.3)]
    for i in range(n):
        last = i == n - 1
        think = last and r.random() < 0.25
        if not last and r.random() < 0.15:
            q, a, _ = qa(r, gloss)
            out += [(USER + q, W_USER), (BOT, W_PROMPT), (ETH + a + EOS, W_ANSWER)]
            continue
        calls = [make_call(r, names) for _ in range(2 if r.random() < 0.15 else 1)]
        pre = (TH + f"I should call {' and '.join(c[0] for c in calls)}." + ETH) if think else ETH
        out += [
            (USER + " ".join(c[2] for c in calls), W_USER),
            (BOT, W_PROMPT),
            (pre + dsml([c[:2] for c in calls]) + EOS, W_ANSWER),
            (USER + "\n\n".join(f"<tool_result>{c[3]}</tool_result>" for c in calls), W_PROMPT),
            (BOT, W_PROMPT),
            ((TH + "The tool has answered." + ETH if think else ETH) + " ".join(c[4] for c in calls) + EOS, W_ANSWER),
        ]
    return out


def needle(r, budget):
    """Facts hidden in filler; questions at the end. budget is in characters."""
    n = r.randint(2, 7)
    ppl = r.sample(st.GIRLS + st.BOYS, n)
    facts = []
    for p in ppl:
        k = r.randint(0, 2)
        if k == 0:
            v = str(r.randint(1000, 9999))
            facts.append(
                (
                    f"The secret code of {p} is {v}.",
                    f"What is the secret code of {p}?",
                    f"The secret code of {p} is {v}.",
                )
            )
        elif k == 1:
            v = r.choice(CITIES)
            facts.append(
                (f"The home town of {p} is {v}.", f"What is the home town of {p}?", f"The home town of {p} is {v}.")
            )
        else:
            v = r.choice(st.ITEMS)
            facts.append(
                (
                    f"The best gift for {p} is the {v}.",
                    f"What is the best gift for {p}?",
                    f"The best gift for {p} is the {v}.",
                )
            )
    filler = []
    while sum(map(len, filler)) < budget:
        filler += (
            st.story(r)[1].split("\n\n") if r.random() < 0.6 else [" ".join(r.choice(st.WEATHER) for _ in range(3))]
        )
    for f in facts:
        filler.insert(r.randint(0, len(filler)), f[0])
    qs = r.sample(facts, min(n, r.randint(1, 6)))
    turns = [("\n".join(filler) + "\n\n" + qs[0][1], qs[0][2])] + [(q[1], q[2]) for q in qs[1:]]
    return [(s, w if w > 0.5 else 0.1 if i == 1 else w) for i, (s, w) in enumerate(chat(turns))]


def read(path):
    with open(path, encoding="latin-1", newline="") as f:
        return f.read()


def glosses(path):
    """(word, gloss) pairs from WordNet's data.noun: first senses with short plain glosses."""
    out, seen = [], set()
    freq = {}
    for line in read(os.path.join(path, "index.noun")).splitlines():
        f = line.split()
        if not line.startswith(" ") and f[0].isalpha() and int(f[5 + int(f[3])]) > 0:
            freq[(f[0], f[6 + int(f[3])])] = 1  # first sense of a word seen in tagged text
    for line in read(os.path.join(path, "data.noun")).splitlines():
        if line.startswith(" "):
            continue
        head, g = line.split("|", 1)
        p = head.split()
        w = p[4]
        g = re.sub(r"\s*\([^)]*\)", "", g.split(";")[0]).strip()
        if (
            w.islower()
            and w.isalpha()
            and w not in seen
            and (w, p[0]) in freq
            and 12 < len(g) < 60
            and g[0] not in '("'
            and not re.search(r'["()`]', g)
            and re.match(r"(an?|the|any|one|someone|something) ", g)
        ):
            seen.add(w)
            out.append((w, g))
    return out


def austen(path):
    """The novels from the R package janeaustenr: zlib chunks of serialised character vectors."""
    with open(path, "rb") as f:
        raw = f.read()
    books, i = [], 0
    while i < len(raw):
        d = zlib.decompressobj()
        s = d.decompress(raw[i + 4 :])
        i = len(raw) - len(d.unused_data)
        books.append(
            re.sub(r"(?<=[^\n])\n(?=[^\n])", " ", "\n".join(iter_strings(s))).replace("--", " - ").replace("_", "")
        )
    return books


def iter_strings(s):
    i = s.find(b"\x00\x04\x00\x09")
    while 0 <= i < len(s) - 8 and s[i : i + 4] == b"\x00\x04\x00\x09":
        n = max(struct.unpack(">i", s[i + 4 : i + 8])[0], 0)
        yield s[i + 8 : i + 8 + n].decode("latin-1")
        i += 8 + n


def prose(args):
    """Public-domain paragraphs, unwrapped."""
    books = []
    if args.austen:
        books += austen(args.austen)
    for p in args.book:
        t = read(p).replace("\r", "").replace("`", "'").replace("''", '"')
        books.append(re.sub(r" +", " ", re.sub(r"(?<=[^\n])\n(?=[^\n])", " ", t)))
    return [[re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", b) if len(p.strip()) > 40] for b in books]


def train_tokenizer(texts, base, vocab, out):
    """Byte-level BPE with the real pre-tokenizer and special tokens, single digits only."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

    with open(base, encoding="utf-8") as f:
        ref = json.load(f)
    special = [
        t["content"]
        for t in ref["added_tokens"]
        if "place" not in t["content"]
        and "image" not in t["content"]
        and not re.search(r"table|/?t[dr]｜|polygon|point|box|ref｜|political", t["content"])
    ]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = Tokenizer.from_file(base).pre_tokenizer
    tok.decoder = Tokenizer.from_file(base).decoder
    tr = trainers.BpeTrainer(
        vocab_size=vocab - len(special) + 3,
        special_tokens=special[:3],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pat = re.compile("|".join(map(re.escape, special)) + r"|\d")
    tok.train_from_iterator((pat.sub(" ", t) for t in texts), tr)
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special[:3]])
    tok.add_tokens([AddedToken(s, special=False, normalized=False) for s in special[3:]])
    tok.save(out)
    assert tok.get_vocab_size() == vocab, tok.get_vocab_size()
    return tok


def documents(r, gloss, paras, mix, long_frac=0.0):
    """Endless stream of weighted documents."""
    kinds, p = zip(*mix.items(), strict=False)
    while True:
        k = r.choices(kinds, p)[0]
        if k == "story":
            t, x, *_ = st.story(r)
            yield k, [(BOS + t + "\n\n" + x + EOS, 1.0)]
        elif k == "story_chat":
            yield k, story_chat(r)
        elif k == "chat":
            yield k, small_chat(r, gloss)
        elif k == "repeat":
            yield k, repeat(r)
        elif k == "tool":
            yield k, tool_chat(r, gloss)
        elif k == "needle":
            yield k, needle(r, r.choice([60, 100, 300, 600, 1200]) if r.random() > long_frac else r.randint(2500, 7500))
        else:
            b = r.choices(paras, [len(x) for x in paras])[0]
            i = r.randrange(max(1, len(b) - 12))
            yield k, [(BOS + "\n\n".join(b[i : i + r.randint(4, 12)]) + EOS, 0.8)]


MIX = dict(
    story=0.345, story_chat=0.21, chat=0.645, tool=0.08, needle=0.13, prose=0.05
)  # per document; by tokens about 20/15/20/13/15/17 %


DENSE = dict(story=0.18, story_chat=0.15, chat=1.2, tool=0.07, needle=0.10, prose=0.008)
COPY = dict(story=0.2, story_chat=0.2, chat=0.8, tool=0.07, needle=0.08, prose=0.006, repeat=1.0)
LAST = dict(story=0.14, story_chat=0.2, chat=0.9, tool=0.09, needle=0.22, prose=0.005, repeat=0.1)
BROAD = dict(story=0.20, story_chat=0.2, chat=0.9, tool=0.09, needle=0.22, prose=0.035, repeat=0.15)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--austen")
    ap.add_argument("--book", nargs="*", default=[])
    ap.add_argument("--wordnet")
    ap.add_argument("--base-tokenizer")
    ap.add_argument("--out", default="data")
    ap.add_argument("--vocab", type=int, default=4096)
    ap.add_argument("--tokens", type=int, default=20_000_000)
    ap.add_argument("--long", type=float, default=0.0)
    ap.add_argument("--name", default="train")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--holdout", action="store_true", help="use the held-out paragraphs (last 3% of each book)")
    ap.add_argument(
        "--mix",
        default="",
        help="dense: many answers per token; copy: the same plus much copying; last: the final phase",
    )
    ap.add_argument("--only", help="one kind of document only")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    gloss = glosses(args.wordnet) if args.wordnet else []
    books = prose(args)
    cut = [int(len(b) * 0.97) for b in books]
    paras = [b[c:] if args.holdout else b[:c] for b, c in zip(books, cut, strict=False)]
    mix = dict(MIX) if paras else {k: v for k, v in MIX.items() if k != "prose"}
    mix.update(dict(dense=DENSE, copy=COPY, last=LAST, broad=BROAD).get(args.mix, {}))
    if args.only:
        mix = {args.only: 1.0}
    r = random.Random(args.seed)
    tp = os.path.join(args.out, "tokenizer.json")
    from tokenizers import Tokenizer

    if not os.path.exists(tp):
        g = documents(random.Random(0), gloss, paras, {**mix, "prose": 0.2, "needle": 0.02})
        texts = ["".join(s for s, _ in next(g)[1]) for _ in range(12000)]
        train_tokenizer(texts, args.base_tokenizer, args.vocab, tp)
    tok = Tokenizer.from_file(tp)
    gen = documents(r, gloss, paras, mix, args.long)
    T, W, _K, n, count, chars = [], [], [], 0, {}, 0
    while n < args.tokens:
        segs, tags = [], []
        for _ in range(256):
            k, d = next(gen)
            for s, w in d:
                segs.append(s)
                tags.append((k, w))
        for e, (k, w) in zip(tok.encode_batch(segs, add_special_tokens=False), tags, strict=False):
            ids = np.array(e.ids, np.uint16)
            T.append(ids)
            W.append(np.full(len(ids), round(w * 100), np.uint8))
            n += len(ids)
            count[k] = count.get(k, 0) + len(ids)
        chars += sum(map(len, segs))
    np.concatenate(T)[: args.tokens].tofile(f"{args.out}/{args.name}.bin")
    np.concatenate(W)[: args.tokens].tofile(f"{args.out}/{args.name}.w.bin")
    print(
        json.dumps(
            dict(
                name=args.name,
                tokens=n,
                chars_per_token=round(chars / n, 2),
                share={k: round(v / n, 3) for k, v in count.items()},
                glosses=len(gloss),
                prose_chars=sum(len(x) for b in paras for x in b),
            )
        )
    )


if __name__ == "__main__":
    main()
