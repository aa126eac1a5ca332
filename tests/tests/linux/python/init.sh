python3.11 -S /loom.py &
read -r word
: >/stop
wait $!
poweroff -f
