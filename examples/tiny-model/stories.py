"""Random short stories in plain English, written by a small grammar (our own words, no outside text)."""

GIRLS = "Lily Anna Mia Rosa Clara Nora Ella Ivy Maya Zoe Ruth Tess Lucy Hana Greta Wren Ada June".split()
BOYS = "Tom Ben Max Leo Sam Finn Jack Oscar Hugo Eli Noah Theo Otto Ravi Omar Pip Milo Carl".split()
ANIMALS = {  # kind: (home, sound, typical food)
    "fox": ("den", "yipped", "berries"),
    "rabbit": ("burrow", "squeaked", "carrots"),
    "bear": ("cave", "grumbled", "honey"),
    "mouse": ("hole", "squeaked", "cheese"),
    "owl": ("hollow tree", "hooted", "seeds"),
    "duck": ("nest", "quacked", "bread"),
    "cat": ("basket", "purred", "fish"),
    "dog": ("kennel", "barked", "bones"),
    "frog": ("pond", "croaked", "flies"),
    "squirrel": ("tree", "chattered", "nuts"),
    "hedgehog": ("pile of leaves", "snuffled", "apples"),
    "otter": ("river bank", "chirped", "fish"),
    "turtle": ("pond", "whispered", "leaves"),
    "crow": ("nest", "cawed", "corn"),
    "badger": ("den", "growled", "roots"),
    "goat": ("shed", "bleated", "grass"),
    "deer": ("thicket", "called softly", "clover"),
    "mole": ("tunnel", "murmured", "worms"),
}
PLACES = [
    "the forest",
    "the village",
    "the river",
    "the old mill",
    "the market",
    "the meadow",
    "the beach",
    "the hill",
    "the lighthouse",
    "the garden",
    "the harbor",
    "the castle",
    "the farm",
    "the valley",
    "the bridge",
    "the orchard",
]
ITEMS = [
    "silver bell",
    "red kite",
    "wooden boat",
    "golden key",
    "blue lantern",
    "small drum",
    "glass marble",
    "brass whistle",
    "green scarf",
    "tin soldier",
    "music box",
    "old map",
    "paper crown",
    "leather book",
    "copper coin",
    "white shell",
    "yellow umbrella",
    "clay pot",
    "round mirror",
    "toy train",
    "long rope",
    "warm blanket",
    "tiny compass",
    "bright feather",
]
FOODS = [
    "bread",
    "soup",
    "apple pie",
    "cheese",
    "pancakes",
    "plums",
    "honey cakes",
    "roast corn",
    "porridge",
    "strawberries",
]
TRAITS = [
    "kind",
    "brave",
    "shy",
    "curious",
    "clever",
    "quiet",
    "cheerful",
    "stubborn",
    "gentle",
    "lonely",
    "proud",
    "careful",
    "lazy",
    "patient",
]
COLORS = "red blue green yellow white black brown grey golden silver orange purple".split()
SKILLS = [
    "swim",
    "whistle",
    "climb",
    "dance",
    "read",
    "sing",
    "paint",
    "skate",
    "bake bread",
    "play the flute",
    "count to one hundred",
    "row a boat",
]
WEATHER = [
    "The sun was warm and the sky was blue.",
    "A soft wind moved through the grass.",
    "It was a cold and misty morning.",
    "Rain tapped on the roof all night.",
    "Snow covered the ground like a white blanket.",
    "The air smelled of flowers.",
    "Clouds were gathering over the hills.",
    "The stars were out and the moon was round.",
    "Leaves were falling from the trees.",
]


class Who:
    """A character: a child or a talking animal, with pronouns."""

    def __init__(self, r, avoid=()):
        while True:
            self.girl = r.random() < 0.5
            self.name = r.choice(GIRLS if self.girl else BOYS)
            self.kind = r.choice(list(ANIMALS)) if r.random() < 0.6 else ("girl" if self.girl else "boy")
            if self.name not in [a.name for a in avoid] and self.kind not in [
                a.kind for a in avoid if a.kind in ANIMALS
            ]:
                break
        self.trait = r.choice(TRAITS)
        self.he, self.him, self.his = ("she", "her", "her") if self.girl else ("he", "him", "his")
        self.He, self.His = self.he.capitalize(), self.his.capitalize()
        self.home, self.sound, self.food = ANIMALS.get(self.kind, ("house", "said", r.choice(FOODS)))

    def full(self):
        return f"{self.name} the {self.kind}" if self.kind in ANIMALS else self.name


def an(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def say(r, w, text):
    """One line of speech by w."""
    end = text[-1]
    verb = (
        r.choice(["asked", "said"])
        if end == "?"
        else r.choice(["cried", "shouted", "said"])
        if end == "!"
        else r.choice(["said", "said", "answered", "replied", "whispered"])
    )
    body = text if end in "?!" else text[:-1] + ","
    return r.choice([f'"{body}" {verb} {w.name}.', f'"{body}" {w.he} {verb}.', f'{w.name} {verb}, "{text}"'])


def opening(r, h, place):
    kind = h.kind if h.kind in ANIMALS else f"little {h.kind}"
    a = r.choice(
        [
            f"Once upon a time there was {an(h.trait)} {kind} named {h.name}.",
            f"There once lived {an(h.trait)} {kind} called {h.name}.",
            f"In a {h.home} near {place} lived {an(h.trait)} {kind} named {h.name}.",
            f"{h.name} was {an(h.trait)} {kind} who lived near {place}.",
            f"Long ago, near {place}, there lived {an(h.trait)} {kind}. {h.His} name was {h.name}.",
        ]
    )
    b = r.choice(
        [
            f"Every day {h.he} walked to {place}.",
            f"{h.He} liked {h.food} more than anything else.",
            f"{h.He} lived with {h.his} grandmother in a small {h.home}.",
            f"{h.He} had many friends, but {h.he} wanted to see the world.",
            f"{h.He} often sat by the window and dreamed.",
            f"Everyone in {place.replace('the ', 'the ')} knew {h.him}.",
        ]
    )
    return [a] + ([b] if r.random() < 0.7 else []) + ([r.choice(WEATHER)] if r.random() < 0.4 else [])


def start(r):
    return r.choice(
        [
            "One day",
            "One morning",
            "One evening",
            "One winter day",
            "One summer morning",
            "The next day",
            "On a Sunday",
            "Early one morning",
            "Late one night",
        ]
    )


def moral(r, h, f, lesson):
    a = r.choice(
        [
            f"From that day on, {h.name} and {f.name} were the best of friends.",
            f"And so {h.name} and {f.name} went home together.",
            "They laughed all the way home.",
            f"That night {h.name} slept well and dreamed of {r.choice(PLACES)}.",
            f"{h.name} never forgot that day.",
            "After that, they met every day.",
        ]
    )
    b = r.choice(
        [
            f"{h.name} had learned that {lesson}.",
            f"Now {h.he} knew that {lesson}.",
            f'"{lesson[0].upper() + lesson[1:]}," said {f.name}, and {h.name} agreed.',
        ]
    )
    return r.choice([[a], [b], [b, a], [a, b]])


def lost(r, h, f, p, it):
    p2 = r.choice([x for x in PLACES if x != p])
    where = r.choice(
        [
            "under a bush",
            "behind a stone",
            "at the bottom of the well",
            "in a bird's nest",
            "beside the road",
            "under the bridge",
            "in the tall grass",
        ]
    )
    return [
        [
            f"{start(r)}, {h.name} could not find {h.his} {it}.",
            r.choice(
                [
                    f"{h.He} looked under the bed and behind the door, but it was gone.",
                    f"{h.He} looked everywhere, but the {it} was not there.",
                    f"{h.He} searched the whole {h.home} twice.",
                ]
            ),
            r.choice(
                [f"{h.name} felt very sad.", f"{h.name} began to cry.", f"{h.He} sat down and did not know what to do."]
            ),
        ],
        [
            f"Then {f.full()} came by.",
            say(r, f, "Why are you so sad?"),
            say(r, h, f"I have lost my {it}."),
            say(
                r,
                f,
                r.choice(
                    [
                        "Do not worry, I will help you.",
                        "Let us look for it together.",
                        "Two pairs of eyes are better than one.",
                    ]
                ),
            ),
            f"So they went to {p2} and looked {r.choice(['for a long time', 'until noon', 'in every corner', 'until the sun was low'])}.",
        ],
        [
            r.choice([f"At last {f.name} saw something shining {where}.", f"Suddenly {h.name} saw something {where}."]),
            f"It was the {it}!",
            say(r, h, f"You found it! Thank you, {f.name}!" if r.random() < 0.5 else "Thank you so much!"),
        ],
    ], "a good friend is worth more than any treasure"


def shy(r, h, f, p, it):
    return [
        [
            f"{start(r)}, a new {f.kind} came to {p}.",
            f"The name of the {f.kind} was {f.name}, and {f.he} did not talk to anyone.",
            r.choice(
                ["The others laughed and walked away.", "Nobody wanted to play.", "Everyone was too busy to say hello."]
            ),
        ],
        [
            f"But {h.name} was {r.choice(['curious', 'kind', 'not like the others'])}.",
            f"{h.He} took {h.his} {it} and went to {f.name}.",
            say(
                r,
                h,
                r.choice(["Would you like to play with me?", f"Would you like to see my {it}?", "What is your name?"]),
            ),
            f"{f.name} looked at the {it} and {r.choice(['smiled a little', 'smiled for the first time', 'nodded slowly'])}.",
            say(
                r,
                f,
                r.choice(
                    [
                        "I would like that very much.",
                        "Nobody has ever asked me before.",
                        "I was afraid that nobody liked me.",
                    ]
                ),
            ),
        ],
        [
            f"They played near {p} until {r.choice(['it was dark', 'the stars came out', 'the bell rang for supper'])}.",
            f"When the others saw how happy they were, they {r.choice(['came to play too', 'were sorry and asked to join', 'all came running'])}.",
        ],
    ], r.choice(["a kind word can open any door", "it is easy to make a friend when you are kind"])


def learn(r, h, f, p, it):
    s = r.choice(SKILLS)
    return [
        [
            f"{h.name} wanted to learn to {s}.",
            f"{f.full()} could {s} better than anyone in {p}.",
            f"{start(r)}, {h.name} went to {f.name}.",
            say(r, h, f"Please, teach me to {s}."),
            say(
                r,
                f,
                r.choice(
                    [
                        "It is not easy, but I will show you.",
                        "First you must be patient.",
                        "Come back tomorrow, and we will begin.",
                    ]
                ),
            ),
        ],
        [
            f"The first time, {h.name} {r.choice(['failed badly', 'fell into the mud', 'gave up after a minute', 'made a terrible mess'])}.",
            r.choice(["Everyone laughed.", f"{h.He} wanted to go home.", f"{h.name} was ashamed."]),
            say(r, f, "Try again."),
            f"So {h.name} tried again the next day, and the day after that.",
            r.choice(
                [
                    f"Little by little, {h.he} got better.",
                    "Each day it was a little easier.",
                    f"Slowly {h.his} fear went away.",
                ]
            ),
        ],
        [
            f"After {r.choice(['a week', 'three weeks', 'a month', 'many days'])}, {h.name} could {s} {r.choice(['all alone', 'very well', 'without any help'])}.",
            f"{f.name} was so {r.choice(['proud', 'happy', 'pleased'])} that {f.he} gave {h.him} a {it}.",
        ],
    ], r.choice(["nothing is hard if you keep trying", "practice makes everything easier"])


def storm(r, h, f, p, it):
    return [
        [
            f"{start(r)}, {h.name} was on the way to {p} when the sky grew dark.",
            r.choice(
                ["Thunder rolled over the hills.", "The wind began to howl.", "Rain poured down from the clouds."]
            ),
            f"{h.name} {r.choice(['was cold and wet', 'was afraid', 'could not see the road'])}.",
        ],
        [
            f"Then {h.he} saw a light in {r.choice(['a small house', 'an old tower', 'a cave', 'a barn'])}.",
            f"It was the home of {f.full()}.",
            say(r, h, "May I come in? The storm is terrible."),
            say(
                r,
                f,
                r.choice(
                    [
                        "Come in and sit by the fire.",
                        "Of course, there is room for two.",
                        f"Come in, I have hot {r.choice(FOODS)}.",
                    ]
                ),
            ),
            f"They sat by the fire and {r.choice(['told stories', 'sang songs', 'ate ' + r.choice(FOODS), 'listened to the rain'])}.",
        ],
        [
            "In the morning the storm was over.",
            f"To say thank you, {h.name} gave {f.name} {h.his} {it}.",
            say(r, f, r.choice(["You are always welcome here.", "Come again, even when the sun is shining."])),
        ],
    ], r.choice(["an open door is the best gift", "after every storm the sun comes back"])


def share(r, h, f, p, it):
    fd = r.choice(FOODS)
    return [
        [
            f"{start(r)}, {h.name} had {r.choice(['a basket', 'a big bag', 'a plate'])} full of {fd}.",
            say(r, h, "This is all for me!"),
            f"{h.He} went to {p} to eat alone.",
        ],
        [
            f"On the way {h.he} met {f.full()}.",
            say(
                r,
                f,
                r.choice(
                    [f"I have not eaten all day. May I have some {fd}?", f"That {fd} smells so good. May I try it?"]
                ),
            ),
            f"At first {h.name} did not want to share.",
            r.choice(
                [
                    f"Then {h.he} saw how thin and tired {f.name} was.",
                    f"But {f.name} looked so hungry that {h.he} felt sorry.",
                    f"Then {h.he} remembered the words of {h.his} mother.",
                ]
            ),
            say(r, h, r.choice(["Sit down, there is enough for both of us.", "Here, take half of it."])),
        ],
        [
            f"They ate together, and the {fd} tasted better than ever.",
            r.choice(
                [
                    f"The next week, {f.name} brought {h.him} a {it}.",
                    f"When {h.name} was hungry in the winter, {f.name} came with food.",
                    f"{f.name} had nothing to give but a {it}, and {h.name} loved it.",
                ]
            ),
        ],
    ], "food tastes better when it is shared"


def truth(r, h, f, p, it):
    return [
        [
            f"{start(r)}, {h.name} was playing with the {it} of {f.full()}.",
            f"{h.He} was not careful, and the {it} {r.choice(['broke', 'fell into the water', 'fell to the ground and broke'])}.",
            r.choice([f"{h.name} was afraid and hid it.", f"{h.He} ran home and told nobody."]),
        ],
        [
            f"When {f.name} came back, {f.he} asked about the {it}.",
            say(r, h, r.choice(["I have not seen it.", "I do not know where it is.", "Maybe the crow took it."])),
            f"That night {h.name} could not sleep.",
            r.choice([f"{h.His} heart was heavy like a stone.", f"{h.He} thought about it again and again."]),
        ],
        [
            f"In the morning {h.he} went to {f.name}.",
            say(
                r,
                h,
                f"I broke your {it}. I am sorry." if r.random() < 0.6 else "I did not tell you the truth. I am sorry.",
            ),
            say(
                r,
                f,
                r.choice(
                    [
                        "Thank you for telling me.",
                        "I am not angry. It was brave to tell the truth.",
                        "We can mend it together.",
                    ]
                ),
            ),
            f"They {r.choice(['mended it with glue and string', 'made a new one', 'went to ' + p + ' to find a new one'])}.",
        ],
    ], "the truth makes the heart light"


def chest(r, h, f, p, it):
    find = r.choice(["an old chest", "a wooden box", "a small iron box", "a dusty bag"])
    return [
        [
            f"{start(r)}, {h.name} and {f.full()} were digging near {p}.",
            "Suddenly they hit something hard.",
            f"It was {find}!",
            say(r, f, r.choice(["Maybe it is full of gold!", "What could be inside?", "Let us open it!"])),
        ],
        [
            f"The box was locked, so they {r.choice(['looked for a key', 'asked the old owl for help', 'tried to open it with a stone', 'carried it home'])}.",
            r.choice(["It took a long time.", "They pulled and pushed.", "They worked until evening."]),
            f"At last it opened with a loud {r.choice(['crack', 'click', 'pop'])}.",
        ],
        [
            f"Inside there was no gold, only a {it} and a letter.",
            f'The letter said: "{r.choice(["The real treasure is the friend who helped you open this.", "Whoever finds this may make one wish.", "Look after this, and it will look after you.", "Give this to someone you love."])}"',
            f"{h.name} {r.choice(['gave the ' + it + ' to ' + f.name, 'smiled and looked at ' + f.name, 'read it aloud twice'])}.",
        ],
    ], "not every treasure is made of gold"


def sick(r, h, f, p, it):
    fd = r.choice(FOODS)
    return [
        [
            f"{start(r)}, {h.name} heard that {f.full()} was sick.",
            say(r, h, f"I will bring {f.him} some {fd}."),
            f"The way to the {f.home} of {f.name} was long, and it led through {p}.",
        ],
        [
            r.choice(
                [
                    f"On the bridge {h.he} met a wolf who wanted the {fd}.",
                    f"On the way {h.he} lost the path.",
                    "Halfway there it began to snow.",
                ]
            ),
            r.choice(
                [
                    f"{h.name} was afraid, but {h.he} did not turn back.",
                    f"{h.name} thought of {f.name} and walked faster.",
                    f"{h.He} sang a song to be brave.",
                ]
            ),
            f"When {h.he} arrived, {f.name} was in bed.",
        ],
        [
            say(r, f, r.choice(["How good to see you!", "Did you come all this way for me?"])),
            f"{h.name} made tea, and {f.name} ate all the {fd}.",
            f"{h.He} also left a {it} by the bed.",
            f"The next morning {f.name} {r.choice(['felt much better', 'could get up again', 'was well again'])}.",
        ],
    ], "a visit can be the best medicine"


def build(r, h, f, p, it):
    thing = r.choice(
        ["a boat", "a tree house", "a bridge", "a kite", "a little house", "a raft", "a snowman", "a cart"]
    )
    return [
        [
            f"{h.name} wanted to build {thing}.",
            f"{start(r)}, {h.he} carried {r.choice(['wood and nails', 'ropes and sticks', 'boards and stones', 'everything ' + h.he + ' needed'])} to {p}.",
            f"{f.full()} came to watch.",
            say(r, f, r.choice(["You will never finish it alone.", "May I help?", "That looks like hard work."])),
        ],
        [
            r.choice(
                [
                    f"At first {h.name} said no, because {h.he} wanted to do it alone.",
                    "They started at once.",
                    f"{h.name} was glad to have help.",
                ]
            ),
            f"{h.name} held the wood, and {f.name} {r.choice(['tied the ropes', 'used the hammer', 'counted the nails', 'made the plan'])}.",
            r.choice(
                [
                    "The first try fell apart.",
                    "On the second day the wind blew it down.",
                    "It was harder than they thought.",
                ]
            ),
            "But they did not give up.",
        ],
        [
            f"After {r.choice(['two days', 'three days', 'a week'])} it was ready.",
            f"They put the {it} on top of it{r.choice([' for luck', ', because it looked nice', '', ' like a flag'])}.",
            f"It was the best {thing.split(' ', 1)[1]} in the whole valley.",
        ],
    ], r.choice(["many hands make light work", "two can do what one cannot"])


def wish(r, h, f, p, it):
    giver = r.choice(["a fairy", "a falling star", "an old fish", "a tiny wizard", "a talking tree"])
    w = r.choice(
        [
            ("to be big", "too big for the door", "small again"),
            ("to fly", "so high that everything was cold and lonely", "back on the ground"),
            ("to have all the gold in the world", "rich, but all the friends were gone", "poor and happy"),
            ("to be the king", "so busy that there was no time to play", "free again"),
            ("to never sleep", "so tired that everything went wrong", "asleep in a soft bed"),
            ("to be invisible", "so lonely, because nobody could see " + h.him, "seen by everyone"),
        ]
    )
    return [
        [
            f"{start(r)}, {h.name} met {giver} near {p}.",
            f'"You may have one wish," said {giver.replace("a ", "the ", 1).replace("an ", "the ", 1)}.',
            say(r, h, f"I wish {w[0]}!"),
            "There was a flash of light, and the wish came true.",
        ],
        [
            f"At first {h.name} was very happy.",
            f"But soon {h.he} was {w[1]}.",
            f"{f.full()} came and {r.choice(['shook ' + f.his + ' head', 'looked at ' + h.him + ' with big eyes', 'laughed'])}.",
            say(r, f, r.choice(["Is this what you wanted?", "Be careful what you wish for."])),
        ],
        [
            f"{h.name} went back and {r.choice(['asked to undo the wish', 'gave away the ' + it + ' to undo the wish', 'said that ' + h.he + ' was sorry'])}.",
            f"In a moment {h.he} was {w[2]}.",
            say(
                r,
                h,
                r.choice(
                    ["I like it better this way.", "I am happy just as I am.", "I will never wish for that again."]
                ),
            ),
        ],
    ], r.choice(["it is best to be yourself", "a wish can be a heavy thing"])


def race(r, h, f, p, it):
    return [
        [
            f"Every year there was a race from {p} to {r.choice([x for x in PLACES if x != p])}.",
            f"The prize was a {it}.",
            say(r, f, r.choice(["I am the fastest. Nobody can beat me!", "I will win, as always!"])),
            f"{h.name} was not fast, but {h.he} wanted to try.",
        ],
        [
            f"When the race began, {f.name} ran far ahead.",
            r.choice(
                [
                    f"After a while {f.he} lay down to rest and fell asleep.",
                    f"But {f.he} stopped to eat and forgot the time.",
                    f"But {f.he} took the wrong path.",
                ]
            ),
            f"{h.name} went on, step by step, and never stopped.",
        ],
        [
            f"In the end {h.name} {r.choice(['came first', 'won the race', 'crossed the line before anyone else'])}.",
            f"Everyone cheered, and {h.he} got the {it}.",
            say(r, f, r.choice(["You have won, and I have learned something.", "Next time I will not be so proud."])),
        ],
    ], r.choice(["slow and steady wins the race", "pride comes before a fall"])


def dark(r, h, f, p, it):
    return [
        [
            f"{h.name} was afraid of the dark.",
            f"{start(r)}, {h.he} heard a strange sound outside.",
            r.choice(["Tap, tap, tap.", "Scratch, scratch.", "Whoo, whoo.", "Bump, bump, bump."]),
            say(r, h, "Who is there?"),
            "Nobody answered.",
        ],
        [
            f"{h.name} took {h.his} {it} and opened the door very slowly.",
            r.choice(
                [f"{h.His} knees were shaking.", f"{h.His} heart was beating fast.", f"{h.He} held {h.his} breath."]
            ),
            f"There in the dark sat {f.full()}.",
            say(
                r,
                f,
                r.choice(
                    [
                        "I am lost, and I was afraid to knock.",
                        "I could not sleep. I am afraid of the dark.",
                        "I only wanted to see your light.",
                    ]
                ),
            ),
        ],
        [
            say(r, h, r.choice(["You are afraid too? Come in!", "Then we can be afraid together."])),
            f"They sat together and {r.choice(['looked at the stars', 'told stories until morning', 'drank warm milk'])}.",
            "The dark did not seem so dark any more.",
        ],
    ], r.choice(["the dark is less dark with a friend", "being brave means doing it even when you are afraid"])


def garden(r, h, f, p, it):
    plant = r.choice(["a pumpkin", "a sunflower", "an apple tree", "a rose", "a bean", "a giant turnip"])
    return [
        [
            f"{start(r)}, {h.name} found a tiny seed near {p}.",
            f"{h.He} put it into the ground and watered it every day.",
            r.choice(
                ["Nothing happened.", "For a week there was only mud.", "Days went by, and there was nothing to see."]
            ),
            say(r, f, r.choice(["That seed is dead. Throw it away.", "You are wasting your time."])),
        ],
        [
            f"But {h.name} did not stop.",
            f"{h.He} {r.choice(['sang to the seed', 'talked to the seed', 'covered it with a blanket when it was cold', 'kept the birds away'])}.",
            f"Then, {r.choice(['one spring morning', 'after a warm rain', 'on the tenth day'])}, a small green leaf came up.",
        ],
        [
            f"It grew and grew, until it was {plant} as tall as a house.",
            say(r, f, r.choice(["I was wrong, and you were right.", "How did you do it?"])),
            f"{h.name} {r.choice(['gave ' + f.him + ' some of the seeds', 'laughed and gave ' + f.him + ' a ' + it, 'only smiled'])}.",
        ],
    ], r.choice(["good things need time", "patience is a kind of magic"])


def sea(r, h, f, p, it):
    isle = r.choice(
        ["an island of glass", "a small green island", "an island full of birds", "a quiet bay", "the end of the world"]
    )
    return [
        [
            f"{start(r)}, {h.name} found an old boat by the water.",
            say(r, h, "Let us sail away and see the world!"),
            f"{f.full()} {r.choice(['was not sure', 'jumped in at once', 'packed some food'])}, and they sailed out to sea with nothing but a {it}.",
        ],
        [
            r.choice(
                [
                    "For three days they saw only water.",
                    "At night they counted the stars.",
                    "The waves were as high as houses.",
                ]
            ),
            r.choice(
                [
                    "A great whale swam beside them and showed the way.",
                    f"The wind broke the mast, but {f.name} mended it with a rope.",
                    "A gull brought them news of land.",
                ]
            ),
            f"At last they came to {isle}.",
        ],
        [
            f"They stayed there for {r.choice(['a day', 'a week', 'a whole summer'])} and {r.choice(['ate sweet fruit', 'slept under the palm trees', 'danced with the birds'])}.",
            f"But soon {h.name} missed {h.his} own bed.",
            say(r, f, r.choice(["It is time to go home.", "The world is big, but home is best."])),
            f"So they turned the boat around and sailed back to {p}.",
        ],
    ], "there is no place like home"


def repair(r, h, f, p, it):
    th = r.choice(
        [
            "the old clock",
            "the town bell",
            "the water wheel",
            "a small robot",
            "the lamp of the lighthouse",
            "the music box of the queen",
        ]
    )
    return [
        [
            f"In {p.replace('the ', 'the ')} {th} had stopped working.",
            r.choice(["Nobody knew what to do.", "The mayor promised a great reward.", "Everyone was worried."]),
            f"{h.name}, who loved to mend things, {r.choice(['took ' + h.his + ' tools and went to look', 'said that ' + h.he + ' would try'])}.",
        ],
        [
            f"{h.He} worked all day with {f.full()}.",
            r.choice(
                [
                    "They took out every screw and cleaned it.",
                    "They found a nest of mice inside.",
                    "One small wheel was missing.",
                ]
            ),
            say(r, f, r.choice(["It is no use.", "What if we use this?", "I have an idea!"])),
            f"{h.name} took a piece of the {it} and {r.choice(['put it inside', 'made a new part', 'bent it into a hook'])}.",
        ],
        [
            r.choice(
                ["Tick, tock! It worked again.", "With a loud hum it began to move.", "Suddenly it shone and sang."]
            ),
            "Everyone cheered.",
            f"As a reward, {h.name} asked only for {r.choice(['a bowl of ' + r.choice(FOODS), 'a new hammer', 'a holiday for everyone', 'a friendly word'])}.",
        ],
    ], r.choice(["small hands can do great things", "anything can be mended with patience"])


PLOTS = [lost, shy, learn, storm, share, truth, chest, sick, build, wish, race, dark, garden, sea, repair]


def story(r, item=None, kind=None):
    """Returns (title, text, hero, friend, item, place)."""
    h = Who(r)
    if kind:
        h.kind = kind
        h.home, h.sound, h.food = ANIMALS[kind]
    f = Who(r, (h,))
    if r.random() < 0.75 and f.kind not in ANIMALS:
        f.kind = r.choice([k for k in ANIMALS if k != h.kind])
        f.home, f.sound, f.food = ANIMALS[f.kind]
    it, p = item or r.choice(ITEMS), r.choice(PLACES)
    paras, lesson = r.choice(PLOTS)(r, h, f, p, it)
    paras[0] = opening(r, h, p) + paras[0]
    paras[-1] = paras[-1] + moral(r, h, f, lesson)
    title = r.choice(
        [
            f"{h.full()} and the {it}" if h.kind not in ANIMALS else f"The {h.kind.capitalize()} and the {it.title()}",
            f"{h.name} and {f.name}",
            f"The {it.title()}",
        ]
    )
    if title.split(" and ")[0] == h.name and it in title:
        title = f"{h.name} and the {it.title()}"
    return title, "\n\n".join(" ".join(s for s in q) for q in paras), h, f, it, p


if __name__ == "__main__":
    import random
    import sys

    r = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for _ in range(3):
        t, x, *_ = story(r)
        print("##", t, "\n" + x + "\n")
