echo workload running
while read -r word; do
    case $word in
    # Exits of several kinds: of ports, of the timer, and halts.
    work)
        ports 3000 && sleep 1 && ports 2000 && echo worked
        ;;
    # By processes whose numbers of exits are known.
    again) ports 1200 && ports 700 && sleep 1 && echo again worked ;;
    many) ports && echo many ports ;;
    over) poweroff -f ;;
    esac
done
