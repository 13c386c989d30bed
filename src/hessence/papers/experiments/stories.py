"""Children's stories, for language models that have read nothing else.

The models of llama2.c were trained on short stories in simple words, each a sequence of its own.
These were written for this library, in the same manner.
"""

from __future__ import annotations

from pathlib import Path

STORIES = (
    "Once upon a time, there was a little boy named Tom. Tom had a red kite and he loved it very "
    "much. One sunny day, he took his kite to the big hill behind his house. The wind was strong "
    "and the kite went up, up, up into the blue sky. Tom laughed and ran in the grass. But then "
    "the string broke! The kite flew away over the trees. Tom was very sad and he started to cry. "
    "His sister Mia heard him and came to help. They looked and looked, and at last they saw the "
    "kite in a tall tree. A kind man with a ladder got it down for them. Tom gave him a big hug "
    'and said, "Thank you!" From that day on, Tom always tied the string very well.',
    "One day, a small brown dog named Max was walking in the park. He saw a duck in the pond. "
    '"Hello, duck," said Max. "Do you want to play with me?" The duck shook her head. "I can '
    'not play now," she said. "I lost my egg and I do not know where it is." Max wanted to help. '
    "He put his nose on the ground and sniffed. He sniffed near the bench and he sniffed under "
    'the bush. Then he found something round and white in the soft leaves. "Is this your egg?" '
    'he asked. The duck was so happy that she jumped. "Yes, it is! You are a good friend," she '
    "said. They sat together and kept the egg warm. The next week, a tiny yellow duck came out.",
    "Lily and her grandma liked to bake cakes together. On Saturday they wanted to make a cake "
    "for Lily's dad, because it was his birthday. Lily put the flour in a bowl. Grandma put in the "
    "eggs and the milk. Then Lily saw a jar with white powder and she thought it was sugar. She "
    "put a lot of it in the bowl. When the cake was ready, Grandma took a small bite and made a "
    'funny face. "Oh no, Lily, this was salt!" she said. Lily felt bad and wanted to cry. But '
    'Grandma smiled and said, "We all make mistakes. Let us try again." They made a new cake, '
    "and this time it was sweet. Dad ate three big pieces and said it was the best cake ever.",
    "There was an old tree in the middle of the forest. Many birds lived in the tree and they "
    "sang every morning. One winter it was very cold and there was a lot of snow. The birds were "
    "hungry and could not find any food. A little girl named Anna looked out of her window and "
    "saw them. She asked her mom if she could give them some bread. Her mom said yes. Anna put on "
    "her warm coat and her blue hat and went outside. She put the bread under the old tree. The "
    "birds came down and ate it all. Every day Anna came back with more. When spring came, the "
    "birds sang the most beautiful song for her, and Anna was very happy.",
)


def stories_of(text: str) -> tuple[str, ...]:
    """Return the stories of a file, which blank lines or ``<|endoftext|>`` divide; or our own.

    `text` is ``"stories"`` for our own, or the path of a file.
    """
    if text == "stories":
        return STORIES
    content = Path(text).read_text(encoding="utf-8", errors="replace")
    mark = "<|endoftext|>"
    parts = content.split(mark if mark in content else "\n\n")
    return tuple(part.strip() for part in parts if part.strip())
