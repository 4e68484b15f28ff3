"""The wordings of the generated word problems: one table, every line marked with the only split that may use it.

The table is read by `patterns.py`, where the vocabulary of the slots is too.

`= name: before -> after: expression: worked answer` opens a family of sentences with one meaning; its wordings
follow, one a line. A wording has slots for {name} and {other} (people), {item} and {box} (plural things), {when}
(at the start of a sentence that follows), {a} and {b} (the numbers of an opening) or {n} (the number of a sentence
that follows); an expression also has {x}, the quantity so far. What is counted is `items` or `money`, or per head
`shares` and `payouts`, after which only the question can come. In the worked answer {work} becomes
`48/2 = <<48/2=24>>24`. The numbers stand in a wording in the order in which the expression takes them.

The held-out wordings use mostly words that training wordings of the same meaning use too, because they ask for
a new arrangement and not for a dictionary. Left out on purpose: pronouns (so that names need no gender), singular
counts, and sentences with idle numbers.
"""

TABLE = """
= state-items: nothing -> items::
train       {name} has {a} {item}.
train       {name} buys {a} {item}.
train       There are {a} {item} on the table of {name}.
train       {name} finds {a} {item} at the lake.
train       {name} starts the week with {a} {item}.
train       A shop sends {a} {item} to {name}.
validation  {name} finds {a} {item} on the table.
validation  On Monday {name} has {a} {item}.
test        {name} starts the day with {a} {item}.
test        There are {a} {item} in the shop of {name}.

= state-money: nothing -> money::
train       {name} has ${a}.
train       {name} has {a} dollars in the bank.
train       {name} earns ${a} on Monday.
train       {name} starts the week with ${a}.
train       {name} finds {a} dollars in a box.
validation  {name} earns {a} dollars in the shop.
test        {name} has {a} dollars on Monday.
test        {name} starts the day with ${a}.

= groups: nothing -> items: {a}*{b}: {name} has {work} {item}.
train       {name} has {a} {box} with {b} {item} in each.
train       {name} buys {a} {box}, and each one holds {b} {item}.
train       There are {a} {box} on the table of {name}. Every one of them contains {b} {item}.
train       {name} packs {a} {item} into each of {b} {box}.
train       Each day {name} collects {a} {item}. {name} does this for {b} days.
train       {name} makes {a} {item} every hour and works for {b} hours.
train       Each of {a} friends brings {b} {item} to {name}.
train       {name} lays the {item} out in {a} rows, and every row has {b} of them.
train       {name} fills {a} {box} with {b} {item} each.
train       {name} gets {a} {item} a week for {b} weeks.
train       A shop sends {name} {a} {box}. There are {b} {item} in every one.
validation  {name} collects {a} {box}, and every one of them holds {b} {item}.
validation  {name} buys {a} {item} each day for {b} days.
validation  There are {a} rows, and {name} lays {b} {item} in each row.
test        {name} finds {a} {box} with {b} {item} in every one.
test        Every week {name} makes {a} {item}. {name} works for {b} weeks.
test        {name} gets {a} {box} from a shop, and each of them contains {b} {item}.
test        {a} friends work for {name}, and each one collects {b} {item}.

= collect: nothing -> items: {a}+{b}: {name} has {work} {item}.
train       {name} has {a} {item} and {other} has {b} {item}. They put them together.
train       {name} finds {a} {item} in the morning and {b} {item} at night.
train       On Monday {name} buys {a} {item}, and on Tuesday {b} more.
train       There are {a} {item} in one bag of {name} and {b} {item} in another bag.
train       {name} has {a} {item} and gets {b} more from {other}.
train       {name} collects {a} {item}. Then {other} adds {b} {item}.
train       {name} makes {a} red {item} and {b} blue {item}.
train       {name} has {a} {item} at home and {b} {item} at school.
train       {other} has {a} {item}. {name} has {b} more than {other}.
train       {name} had {a} {item} and then bought another {b}.
train       {name} puts {a} {item} in a box, and {other} adds {b} {item}.
train       {name} buys {a} {item}, and {other} brings {b} {item} too.
validation  {name} buys {a} {item} in the morning and {b} more at night.
validation  {name} has {a} {item}, and then {other} brings {b} more.
validation  {name} finds {a} blue {item} at home and {b} red {item} at school.
test        {name} makes {a} {item} on Monday and {b} {item} on Tuesday.
test        {name} has {a} {item} in a bag and another {b} at home.
test        {other} adds {a} {item} to the {b} {item} of {name}.
test        {name} collects {a} red {item} and then {b} more.

= lose: nothing -> items: {a}-{b}: {name} has {work} {item} left.
train       {name} has {a} {item} but loses {b} of them.
train       {name} picks {a} {item} and gives {b} to {other}.
train       {name} had {a} {item} and sold {b} of them.
train       Of the {a} {item} of {name}, {b} are broken and thrown away.
train       {name} makes {a} {item}. {other} takes {b} of them away.
train       {name} buys {a} {item} and gives away {b}.
train       {other} has {a} {item}. {name} has {b} fewer than {other}.
train       There were {a} {item} on the table of {name}, but {b} fell down and broke.
train       {name} brings {a} {item} to school and uses up {b} of them.
train       {name} had {a} {item} before {other} took {b}.
validation  {name} buys {a} {item} but {b} of them are broken.
validation  {name} had {a} {item} and gave {b} away to {other}.
validation  {name} makes {a} {item} and loses {b}.
test        {name} finds {a} {item} but gives {b} of them away.
test        There were {a} {item} in the bag of {name}, and {other} took {b} of them.
test        {name} brings {a} {item} and sells {b} of them.
test        {name} collects {a} {item}, but {b} are thrown away.

= divide: nothing -> items: {a}/{b}: {name} has {work} {item}.
train       {a} {item} are shared equally by {b} friends, and {name} is one of them.
train       {other} splits {a} {item} into {b} equal parts and gives one part to {name}.
train       {b} children share {a} {item} equally. {name} is one of the children.
train       {name} puts {a} {item} equally into {b} {box} and keeps one of the {box}.
train       A shop divides {a} {item} equally among {b} people, and one of them is {name}.
train       There are {a} {item} in {b} equal {box}. {name} takes one of the {box}.
train       {a} {item} are put into {b} equal {box}. One of the {box} is for {name}.
validation  {other} divides {a} {item} equally into {b} {box} and gives one of them to {name}.
validation  {a} {item} are split into {b} equal parts, and {name} gets one part.
test        {b} people split {a} {item} equally, and {name} is one of the people.
test        {other} puts {a} {item} into {b} equal {box}. {name} gets one of them.
test        {a} {item} are divided equally among {b} children. {name} is one of them.

= earn: nothing -> money: {a}*{b}: {name} has {work} dollars.
train       {name} earns ${a} an hour and works {b} hours.
train       {name} sells {a} {item} for {b} dollars each.
train       {name} saves {a} dollars every week for {b} weeks.
train       {name} is paid ${a} for each of {b} {box}.
train       {a} friends each give {b} dollars to {name}.
train       {name} gets {a} dollars a day. {name} works for {b} days.
train       {name} sells {a} {box} at ${b} per piece.
train       {name} makes {a} dollars every day and works for {b} days.
train       Every day {name} gets ${a}. {name} does this for {b} days.
validation  {name} earns {a} dollars a day for {b} days.
validation  {name} sells {a} {item} at {b} dollars per piece.
test        Each week {name} is paid {a} dollars. {name} works for {b} weeks.
test        {name} sells {a} {box}, each of them for ${b}.
test        {name} saves ${a} a day for {b} days.

= add-money: nothing -> money: {a}+{b}: {name} has {work} dollars.
train       {name} has ${a} and earns {b} dollars more.
train       {name} gets ${a} from one friend and ${b} from another.
train       {name} earns {a} dollars on Monday and {b} dollars on Tuesday.
train       {name} has {a} dollars and {other} adds {b} dollars to them.
train       {name} finds {a} dollars in the morning and another {b} at night.
train       {name} makes ${a} and then {b} dollars more.
validation  {name} has ${a} and gets ${b} more from {other}.
test        {name} earns ${a} in the morning and {b} dollars more at night.
test        {name} gets {a} dollars on Monday and another {b} dollars on Tuesday.

= spend: nothing -> money: {a}-{b}: {name} has {work} dollars left.
train       {name} has ${a} and spends ${b} of it.
train       {name} had {a} dollars but lost {b} of them.
train       {name} earns ${a} and pays {b} dollars for food.
train       {name} takes {a} dollars to the shop and buys a book for ${b}.
train       {name} has {a} dollars and uses {b} of them.
train       {name} finds ${a} and gives ${b} to {other}.
train       {name} had ${a}, but {other} took {b} dollars away.
validation  {name} had ${a} and paid ${b} for a book.
test        {name} gets ${a} and spends {b} dollars on food.
test        {name} has {a} dollars and gives {b} of them to {other}.

= more: items -> items: {x}+{n}: {name} has {work} {item} then.
train       {when} {name} gets {n} more.
train       {when} {name} gets another {n} {item}.
train       {when} {other} adds {n} more {item}.
train       {when} {name} finds {n} extra {item} and keeps them.
train       {when} {other} gives {name} another {n} {item}.
train       {when} {other} gives {n} of the same {item} to {name} as a gift.
train       {when} {name} buys {n} more.
train       {when} {name} also takes {n} old {item} from home.
train       {when} {n} new {item} come in.
train       {when} {name} puts {n} extra {item} with them.
train       {when} {name} receives {n} more {item} as a gift.
train       {when} a friend brings {n} {item} to {name}.
train       {when} {name} collects {n} more of them.
train       {when} {name} makes another {n}.
train       {when} {name} also makes {n} of them.
train       {when} there are {n} more.
validation  {when} {other} brings {n} more.
validation  {when} {name} also receives {n} {item} from a friend.
validation  {when} {name} makes {n} extra {item}.
validation  {when} {name} collects another {n} {item}.
test        {when} a friend gives {name} {n} more {item}.
test        {when} {name} finds another {n}.
test        {when} {other} puts {n} extra {item} in.
test        {when} {name} also gets {n} new {item}.
test        {when} {n} more {item} come from {other} as a gift.

= fewer: items -> items: {x}-{n}: {name} has {work} {item} left.
train       {when} {name} sells {n} of them.
train       {when} {n} of the {item} break.
train       {when} {name} gives {n} of them to {other}.
train       {when} {name} gives {n} of the {item} away as a gift.
train       {when} {other} takes {n} of the {item} away.
train       {when} {name} loses {n} {item}.
train       {when} {n} of them are bad and {name} throws them away.
train       {when} {name} uses {n} {item}.
train       {when} {name} gives away {n}.
train       {when} a dog runs off with {n} of them.
train       {when} {name} drops {n} of the {item} in the lake.
train       {when} {n} {item} are gone.
train       {when} {other} borrows {n} and does not bring them back.
train       {when} there are {n} fewer.
train       {when} {n} are lost.
train       {when} {other} buys {n} of them from {name}.
validation  {when} {name} throws {n} of them away.
validation  {when} {n} of the {item} are gone.
validation  {when} {other} borrows {n} of the {item} from {name}.
validation  {when} {name} loses {n} of them.
test        {when} {other} takes {n} of them.
test        {when} {n} {item} are bad and are thrown away.
test        {when} {name} drops {n} of them.
test        {when} {name} gives {n} {item} away.
test        {when} {name} uses up {n} of the {item}.

= times: items -> items: {x}*{n}: {name} has {work} {item} then.
train       {when} the number of {item} becomes {n} times as large.
train       {when} {name} has {n} times as many {item}.
train       {when} {name} goes on until there are {n} times as many.
train       {when} there are {n} times as many {item} as before.
train       {when} by magic every one of them turns into {n} {item}.
train       {when} {name} trades each of them for {n} smaller {item}.
train       {when} {name} gets {n} new {item} for each of the old ones.
train       {when} the {item} of {name} are {n} times as many.
train       {when} each of the {item} is cut into {n} {item}.
validation  {when} {name} finds that there are {n} times as many {item}.
validation  {when} {name} trades every one of the {item} for {n} new ones.
test        {when} by magic the {item} become {n} times as many.
test        {when} each of them turns into {n} {item}.
test        {when} the number of {item} is {n} times as large as before.

= double: items -> items: {x}*2: {name} has {work} {item} then.
train       {when} {name} doubles the number of {item}.
train       {when} {name} has twice as many {item}.
train       {when} {name} goes on until there are twice as many.
train       {when} the number of {item} doubles.
train       {when} there are twice as many {item} as before.
train       {when} the {item} of {name} double by magic.
validation  {when} the {item} become twice as many.
test        {when} by magic the number of {item} doubles.
test        {when} the {item} of {name} are twice as many as before.

= split: items -> items: {x}/{n}: {name} keeps {work} {item}.
train       {when} {name} splits them into {n} equal parts and keeps one part.
train       {when} they are divided into {n} equal {box}, and {name} keeps only one.
train       {when} {name} shares the {item} equally, so that each of {n} people gets the same.
train       {when} {name} puts them equally into {n} {box} and sells all but one of the {box}.
train       {when} the {item} are split equally among {n} people, and {name} is one of these.
train       {when} {name} divides the {item} into {n} equal parts and uses only one part.
train       {when} {n} people share them equally, and {name} is one of these.
train       {when} the {item} are put into {n} equal {box}, and {name} gets one of the {box}.
train       {when} {name} and some friends share them, so that {n} people get an equal part.
validation  {when} the {item} are divided into {n} equal parts, and {name} keeps one part.
validation  {when} {name} shares them equally, so that {n} people get the same.
test        {when} {name} divides them equally among {n} people and is one of these.
test        {when} the {item} are put into {n} equal {box}, and {name} keeps only one.
test        {when} they are split into {n} equal parts, and {name} gets one of the parts.

= half: items -> items: {x}/2: {name} has {work} {item} left.
train       {when} {name} gives half of them to {other}.
train       {when} half of the {item} break.
train       {when} {name} sells half of the {item}.
train       {when} {other} takes half of them.
train       {when} {name} loses half of the {item}.
train       {when} only half of the {item} are left.
validation  {when} {name} gives half of the {item} away.
test        {when} {name} drops half of them.
test        {when} half of the {item} are gone.

= sell: items -> money: {x}*{n}: {name} gets {work} dollars.
train       {when} {name} sells each one for {n} dollars.
train       {when} each of the {item} is sold for ${n}.
train       {when} all of them are sold at {n} dollars per piece.
train       {when} a shop pays {name} ${n} for each.
train       {when} {name} sells all {item} at a price of ${n} each.
train       {when} {name} gets {n} dollars for every one of them.
train       {when} {other} buys every one of them from {name} for ${n}.
validation  {when} {name} sells all of them for ${n} each.
validation  {when} a shop buys each one from {name} for {n} dollars.
test        {when} a shop pays ${n} for each of the {item}.
test        {when} {name} sells every one of them at {n} dollars.
test        {when} all {item} are sold for {n} dollars per piece.

= share: items -> shares: {x}/{n}: Each one gets {work} {item}.
train       {when} they are shared equally by {n} friends.
train       {when} they are split into {n} equal parts.
train       {when} {name} divides the {item} equally among {n} children.
train       {when} {name} puts the same number of {item} into each of {n} {box}.
train       {when} {n} people get an equal share of the {item}.
train       {when} {n} friends share the {item} equally.
train       {when} the {item} are divided into {n} equal {box}.
train       {when} {name} gives each of {n} people an equal part of them.
train       {when} {name} splits the {item} into {n} equal parts.
validation  {when} {name} splits the {item} equally among {n} friends.
validation  {when} they are put equally into {n} {box}.
test        {when} {n} children share them equally.
test        {when} they are divided into {n} equal parts.
test        {when} {name} gives an equal share of the {item} to each of {n} friends.

= gain: money -> money: {x}+{n}: {name} has {work} dollars then.
train       {when} {name} earns {n} dollars more.
train       {when} {other} gives {name} another ${n}.
train       {when} {other} gives {n} dollars to {name} as a gift.
train       {when} {name} gets {n} more dollars.
train       {when} {name} also takes ${n} from home.
train       {when} {name} finds {n} dollars and keeps them.
train       {when} {name} receives ${n} as a gift.
train       {when} {name} also earns {n} dollars.
train       {when} {other} adds ${n} to the money.
train       {when} a friend brings {name} another {n} dollars.
validation  {when} {name} earns another {n} dollars.
validation  {when} {name} also gets ${n} from a friend.
test        {when} a friend gives {name} ${n} more.
test        {when} {name} also receives {n} dollars as a gift.
test        {when} {name} adds {n} more dollars.

= pay: money -> money: {x}-{n}: {name} has {work} dollars left.
train       {when} {name} spends {n} dollars on food.
train       {when} {name} pays ${n} for a book.
train       {when} {name} gives {n} dollars to {other}.
train       {when} {name} loses ${n}.
train       {when} {name} buys a hat for ${n}.
train       {when} {name} uses ${n} of the money for a trip.
train       {when} {other} borrows ${n} from {name}.
train       {when} {other} takes {n} dollars away.
train       {when} {name} pays {other} {n} dollars.
validation  {when} {name} spends ${n} on a trip.
validation  {when} {other} takes ${n} of the money.
test        {when} {name} pays {n} dollars for food.
test        {when} {name} gives ${n} of the money away.
test        {when} {name} buys a book for {n} dollars.

= grow: money -> money: {x}*{n}: {name} has {work} dollars then.
train       {when} {name} has {n} times as much money.
train       {when} the money becomes {n} times as much.
train       {when} {name} goes on until there is {n} times as much money.
train       {when} there are {n} times as many dollars.
train       {when} the money of {name} is {n} times as much as before.
validation  {when} {name} finds that there is {n} times as much money.
test        {when} {name} works until the money is {n} times as much.
test        {when} there is {n} times as much money as before.

= divide-money: money -> payouts: {x}/{n}: Each one gets {work} dollars.
train       {when} {name} shares the money equally among {n} friends.
train       {when} the money is split into {n} equal parts.
train       {when} {n} people get an equal share of the money.
train       {when} {name} puts the same part of the money into each of {n} {box}.
train       {when} {name} divides the dollars into {n} equal parts.
train       {when} {n} children share the dollars equally.
train       {when} {name} gives each of {n} friends an equal part of the money.
validation  {when} {name} splits the money equally among {n} children.
test        {when} {n} friends share the money equally.
test        {when} the money is divided into {n} equal parts.

= ask-items: items -> end::
train       How many {item} does {name} have now?
train       How many {item} are there in the end?
train       What is the number of {item} that {name} has now?
train       How many {item} does {name} have in all?
train       How many {item} is that?
train       Find the number of {item} of {name}.
validation  What is the number of {item} in the end?
validation  How many {item} are there now?
test        How many {item} does {name} have in the end?
test        What is the number of {item} now?

= ask-money: money -> end::
train       How many dollars does {name} have now?
train       How much money does {name} have in the end?
train       What is the number of dollars that {name} has now?
train       How much money is that in dollars?
train       Find how many dollars {name} has.
validation  How many dollars are there in the end?
test        How much money does {name} have now?
test        How many dollars does {name} have in all?

= ask-shares: shares -> end::
train       How many {item} does each one get?
train       How many {item} are in one share?
train       Find the number of {item} for each one.
validation  What is the number of {item} in each share?
test        How many {item} are there for each one?
test        How many {item} are in each part?

= ask-payouts: payouts -> end::
train       How many dollars does each one get?
train       How much money is in one share?
train       Find the number of dollars for each one.
validation  What is the number of dollars in each share?
test        How many dollars are there for each one?
test        How much money is in each part?
"""
