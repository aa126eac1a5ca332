echo workload running
while read -r word; do
    case $word in
    # Exits of several kinds: of ports, of the timer, and halts.
    work)
        ports 3000 && sleep 1 && ports 2000 && echo worked
        ;;
    many) ports && echo many ports ;;
    over) poweroff -f ;;
    esac
done
