"""Programs as language models write them; a sandbox must print for each exactly what `python main.py` prints."""

from __future__ import annotations

from hostile_programs import read_programs

PROGRAMS = read_programs("ordinary_programs.txt")

# What a text file cannot hold.
PROGRAMS |= {
    "empty": "",
    "comment": "# nothing to do",
    "no newline at the end": "for i in range(3):\n    print(i)",
    "windows line ends": "x = 1\r\nif x:\r\n    print('crlf')\r\n",
}
