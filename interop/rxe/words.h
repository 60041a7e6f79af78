// Lines of commands on standard input: a name, and words or NAME=VALUE pairs after it.
#ifndef WORDS_H
#define WORDS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 40 };

// The words of the current line.
static char *words[MAX_WORDS];
static int word_count;

// The value of a pair, or NULL.
static const char *text(const char *name)
{
	size_t length = strlen(name);

	for (int word = 1; word < word_count; word++)
		if (!strncmp(words[word], name, length) && words[word][length] == '=')
			return words[word] + length + 1;
	return NULL;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *value = text(name);

	return value ? strtoull(value, NULL, 0) : otherwise;
}

// Calls `run` for each line that is not empty, until the line `quit` or the end of the input. Answers leave line by line.
static void each_line(void (*run)(void))
{
	char line[4096];

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		word_count = 0;
		for (char *word = strtok(line, " \n"); word && word_count < MAX_WORDS; word = strtok(NULL, " \n"))
			words[word_count++] = word;
		if (word_count && !strcmp(words[0], "quit"))
			return;
		if (word_count)
			run();
	}
}

#endif
