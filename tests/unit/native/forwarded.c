/* Whether models are in a list: arguments are the list and the models; prints one digit for each, or that it is no list. */
#include "forwarded.h"

#include <stdio.h>

int main(int count, char **arguments) {
  static struct forwarded forwarded;
  if (count < 2) return 2;
  if (!forwarded_read(&forwarded, (struct text){arguments[1], strlen(arguments[1])})) {
    puts("no list");
    return 0;
  }
  for (int i = 2; i < count; i++)
    putchar(forwarded_has(&forwarded, (struct text){arguments[i], strlen(arguments[i])}) ? '1' : '0');
  return 0;
}
