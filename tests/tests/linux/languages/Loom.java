import java.io.File;

// Five methods of known shares, which are called through interfaces, in two threads. Each measures its own time.
public class Loom {
  interface Step {
    long take(long number);
  }

  static final String[] NAMES = {"Loom.card", "Loom.comb", "Loom.weave", "Loom$Dyer.dye", "Loom.press"};
  // Nanoseconds.
  static final long[] SPENT = new long[NAMES.length];

  static void account(int index, long begin) {
    SPENT[index] += System.nanoTime() - begin;
  }

  static long card(long number) {
    long begin = System.nanoTime();
    do {
      for (int step = 0; step < 1000; step++) number += step * number;
    } while (System.nanoTime() - begin < 30_000_000);
    account(0, begin);
    return number;
  }

  static long comb(long number) {
    long begin = System.nanoTime();
    do {
      for (int step = 0; step < 1000; step++) number += step * number;
    } while (System.nanoTime() - begin < 25_000_000);
    account(1, begin);
    return number;
  }

  static long weave(long number) {
    long begin = System.nanoTime();
    do {
      for (int step = 0; step < 1000; step++) number += step * number;
    } while (System.nanoTime() - begin < 20_000_000);
    account(2, begin);
    return number;
  }

  static class Dyer {
    long dye(long number) {
      long begin = System.nanoTime();
      do {
        for (int step = 0; step < 1000; step++) number += step * number;
      } while (System.nanoTime() - begin < 15_000_000);
      account(3, begin);
      return number;
    }
  }

  static long press(long number) {
    long begin = System.nanoTime();
    do {
      for (int step = 0; step < 1000; step++) number += step * number;
    } while (System.nanoTime() - begin < 10_000_000);
    account(4, begin);
    return number;
  }

  static boolean runs() {
    return !new File("/stop").exists();
  }

  static long sortThreads(Step step, long number) {
    return step.take(number) + 1;
  }

  static long firstRoom() {
    long number = 1;
    while (runs()) {
      number += sortThreads(Loom::card, number);
      number += weave(number);
    }
    return number;
  }

  static long secondRoom() {
    Step dye = new Dyer()::dye;
    long number = 1;
    while (runs()) {
      number += comb(number) + dye.take(number);
      number += press(number);
    }
    return number;
  }

  public static void main(String[] arguments) throws InterruptedException {
    System.out.println("workload running");
    // Threads are called as their program is.
    Thread second = new Thread("java") {
      public void run() {
        NAMES[0] += secondRoom() == 0 ? " " : "";
      }
    };
    second.start();
    NAMES[0] += firstRoom() == 0 ? " " : "";
    second.join();
    for (int index = 0; index < NAMES.length; index++) {
      System.out.println("spent " + NAMES[index] + " " + SPENT[index]);
    }
    System.out.println("spent all");
  }
}
