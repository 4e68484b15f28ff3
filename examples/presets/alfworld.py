"""Housework: to look into one place after the other until the thing is found, to take it, to carry it where it goes."""

from agent_gym.examples.presets.preset import COPY, TINY_GRPO, Imitation, Preset, mostly_badly

# Furniture and things are a token each, with their numbers, and so is what the world always says in the same words: an
# episode has half as many tokens. Where to look next stands in the list at the beginning, behind the place where one
# is: with a token for each place, to find it takes one step of looking back.
_FURNITURE = (
    "armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable drawer dresser "
    "fridge garbagecan handtowelholder laundryhamper microwave ottoman safe shelf sidetable sinkbasin sofa stoveburner "
    "toaster toilet toiletpaperhanger towelholder tvstand"
).split()
_THINGS = (
    "alarmclock apple baseballbat basketball book bowl box bread butterknife candle cd cellphone cloth creditcard cup "
    "desklamp dishsponge egg fork glassbottle handtowel kettle keychain knife ladle laptop lettuce mug newspaper pan "
    "pen pencil peppershaker pillow plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon "
    "spraybottle statue teddybear tennisracket tissuebox toiletpaper tomato towel vase watch wateringcan winebottle"
).split()
_FRAMES = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a ",
    ", a ",
    ", and a ",
    ".\n\nYour task is to: put",
    "go to ",
    "open ",
    "take ",
    " from ",
    "move ",
    " to ",
    "You arrive at ",
    "You open the ",
    "You pick up the ",
    " from the ",
    "You move the ",
    " to the ",
    ". The ",
    ". On the ",
    " is closed.",
    " is open. In it, you see a ",
    " is open. In it, you see nothing.",
    ", you see a ",
    ", you see nothing.",
    "Nothing happens.",
    *(f"{name} {number}" for name in _FURNITURE for number in range(1, 5)),
    *(f"{name} 1" for name in _THINGS),
)

ALFWORLD = Preset(
    env_id="AgentR1/ALFWorld-v0",
    env_kwargs={
        # Rooms with four receptacles, in which something lies in one and has to be put into another.
        "receptacles": 4,
        "task_types": ("pick_and_place_simple",),
        "commands": "text",
        "system_prompt": "",
        # Whoever looks into one receptacle after the other needs ten turns at most.
        "max_turns": 12,
    },
    model=None,
    tiny={"frames": _FRAMES, "demonstrations": 500},
    imitation=(
        Imitation(
            name="expert imitation",
            episodes=2000,
            styles={"searching": 1.0},
            steps=900,
            # Small batches and much weight decay: what takes long is to find out how the list is gone through.
            batch=8,
            settings={
                **COPY,
                "lr_scheduler_type": "warmup_stable_decay",
                "lr_scheduler_kwargs": {"num_decay_steps": 400, "decay_type": "linear", "min_lr_ratio": 0.05},
                "warmup_steps": 30,
            },
        ),
        mostly_badly("SFT policy (70% give up at once)", {"searching": 0.3, "direct": 0.7}),
    ),
    train_tasks=4000,
    dev_split="validation",
    dev_tasks=100,
    test_tasks=300,
    grpo={**TINY_GRPO, "max_steps": 16, "eval_steps": 4, "max_turn_tokens": 12},
)
