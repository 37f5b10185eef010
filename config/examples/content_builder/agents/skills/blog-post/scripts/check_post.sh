#!/bin/sh
# Checks the form of a blog post: one title, sections, length, words that the town does not use.
# Usage: check_post.sh FILE. Prints a line for each fault and ends with 1, or prints ok.

file=${1:?usage: check_post.sh FILE}
faults=0

fault() {
    echo "$file: $1"
    faults=$((faults + 1))
}

[ -r "$file" ] || { echo "$file: it is not there"; exit 1; }

titles=$(grep -c '^# ' "$file")
[ "$titles" -eq 1 ] || fault "has $titles titles (# ), wanted is 1"

sections=$(grep -c '^## ' "$file")
{ [ "$sections" -ge 2 ] && [ "$sections" -le 4 ]; } || fault "has $sections sections (## ), wanted are 2 to 4"

words=$(wc -w < "$file")
{ [ "$words" -ge 150 ] && [ "$words" -le 400 ]; } || fault "has $words words, wanted are 150 to 400"

for word in exciting unique world-class game-changer leverage; do
    grep -qiw -e "$word" "$file" && fault "uses the word $word"
done

[ "$faults" -eq 0 ] || exit 1
echo "ok: $words words, $sections sections"
