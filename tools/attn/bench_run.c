/* SPDX-License-Identifier: Apache-2.0 */
/* One case: words or a file to a request with data, the call opened, its first result judged, then timed; at the end
   its last result has to have the bits of the first. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* Everything of a case that has to be given back. */
typedef struct subject {
  bench_session *session;
  st_file file;
  request parsed;
  int has_request;
  attn_problem problem;
  run_result result;
  run_job job;
  const run_steps *steps;
  void *call;
  run_result first; /* copies of the outputs after the first call */
} subject;

static void close_subject(subject *s) {
  if (s->call != NULL) {
    s->steps->close(s->call);
  }
  run_result_free(&s->result);
  run_result_free(&s->first);
  if (s->has_request) {
    request_free(&s->parsed);
  }
  st_free(&s->file);
  free(s);
}

static int parse(subject *s) {
  cli_report *report = s->session->report;
  if (s->has_request) {
    request_free(&s->parsed);
  }
  s->has_request = 0;
  int code = request_parse(&s->file, s->session->flags, &s->parsed, report);
  s->has_request = code == CLI_OK;
  if (code == CLI_OK && s->parsed.latent) {
    return cli_fail(report, CLI_BAD_INPUT, "op %s on latent rows is not measured; accepted: requests of K and V",
                    s->parsed.op->name);
  }
  return code == CLI_OK ? request_check(&s->parsed, report) : code;
}

/* Outputs are NaN before the call that is judged. */
static void poison(const subject *s) {
  for (size_t i = 0; i < s->result.num_tensors; ++i) {
    memset(s->result.tensors[i].data, 0xFF, s->result.tensors[i].bytes);
  }
  for (int i = 0; s->parsed.op->op == OP_CACHE_WRITE && i < 2; ++i) {
    const st_tensor *pool = s->parsed.tensor[i == 0 ? TENSOR_K_CACHE : TENSOR_V_CACHE];
    memset(pool->data, 0xFF, pool->bytes);
  }
}

static int open_call(subject *s) {
  s->job.context = s->session->context;
  s->job.flags = s->session->flags;
  s->job.request = &s->parsed;
  s->job.result = &s->result;
  s->job.report = s->session->report;
  s->steps = run_steps_of(&s->parsed);
  int code = CLI_OK;
  if (s->parsed.op->op == OP_ATTENTION) {
    code = request_problem(&s->parsed, s->session->flags, &s->problem, s->session->report);
  }
  if (code == CLI_OK) {
    code = s->steps->open(&s->job, &s->call);
  }
  if (code == CLI_OK && s->result.backend[0] == '\0') {
    code = run_name_backend(s->session->context, s->session->flags, s->result.backend, sizeof(s->result.backend),
                            s->result.reason, s->session->report);
  }
  return code;
}

static int keep_first(subject *s) {
  for (size_t i = 0; i < s->result.num_tensors; ++i) {
    st_tensor *kept = &s->first.tensors[i];
    *kept = s->result.tensors[i];
    kept->data = cli_alloc(kept->bytes, 0);
    if (kept->data == NULL) {
      return cli_fail(s->session->report, CLI_FAILED, "no memory to keep the first result");
    }
    memcpy(kept->data, s->result.tensors[i].data, kept->bytes);
    ++s->first.num_tensors;
  }
  return CLI_OK;
}

static int compare_last(const subject *s) {
  for (size_t i = 0; i < s->first.num_tensors; ++i) {
    if (memcmp(s->first.tensors[i].data, s->result.tensors[i].data, s->first.tensors[i].bytes) != 0) {
      return cli_fail(s->session->report, CLI_FAILED,
                      "%s is wrong: %s has other bits after the last call than after the "
                      "first",
                      s->result.backend, s->result.tensors[i].name);
    }
  }
  return CLI_OK;
}

static int call_once(void *context) {
  const subject *s = context;
  return s->steps->compute(&s->job, s->call) == CLI_OK;
}

static int measure(subject *s, bench_item *item) {
  check_rng rng;
  check_rng_seed(&rng, (uint64_t)s->session->flags->seed, 0, 1);
  poison(s);
  int code = s->steps->compute(&s->job, s->call);
  if (code == CLI_OK) {
    code = keep_first(s);
  }
  if (code == CLI_OK && s->session->sitting == 0) {
    code = bench_judge(&s->job, &s->problem, &rng);
  }
  if (code != CLI_OK) {
    return code;
  }
  bench_count(&s->parsed, &s->problem, &item->work);
  item->op = s->parsed.op->name;
  item->splits = s->result.splits;
  memcpy(item->backend, s->result.backend, sizeof(item->backend));
  code = bench_time(s->session, call_once, s, item);
  return code == CLI_OK ? compare_last(s) : code;
}

/* The file is read: the rest. */
static int run_subject(subject *s, bench_item *item) {
  int code = parse(s);
  if (code == CLI_OK) {
    code = bench_fill(s->session, &s->parsed, &s->file);
  }
  if (code == CLI_OK) { /* again, now that lists have entries */
    code = parse(s);
  }
  if (code == CLI_OK) {
    code = open_call(s);
  }
  return code == CLI_OK ? measure(s, item) : code;
}

static subject *new_subject(bench_session *session) {
  subject *s = calloc(1, sizeof(*s));
  if (s != NULL) {
    s->session = session;
  } else {
    cli_fail(session->report, CLI_FAILED, "no memory for a case");
  }
  return s;
}

/* The words of a case, cut at blanks; `copy` holds them. */
static size_t cut_words(char *copy, char **words) {
  size_t count = 0;
  for (char *word = copy; *word != '\0' && count < CLI_MAX_WORDS;) {
    char *end = word + strcspn(word, " ");
    int last = *end == '\0';
    *end = '\0';
    words[count++] = word;
    word = last ? end : end + 1;
  }
  return count;
}

int bench_run_words(bench_session *session, bench_item *item) {
  const char *text = item->words;
  char *words[CLI_MAX_WORDS];
  char *copy = malloc(strlen(text) + 1);
  subject *s = new_subject(session);
  int code = CLI_FAILED;
  if (copy == NULL || s == NULL) {
    free(copy);
    free(s);
    return cli_fail(session->report, CLI_FAILED, "no memory for a case");
  }
  strcpy(copy, text);
  size_t count = cut_words(copy, words);
  if (bench_is_copy(count, words)) {
    free(s);
    code = bench_run_copy(session, count, words, item);
  } else {
    code = request_from_words(count, words, &s->file, session->report);
    if (code == CLI_OK) {
      code = run_subject(s, item);
    }
    close_subject(s);
  }
  free(copy);
  return code;
}

int bench_run_file(bench_session *session, bench_item *item) {
  subject *s = new_subject(session);
  if (s == NULL) {
    return CLI_FAILED;
  }
  int code = st_read(item->words, &s->file, session->report);
  if (code == CLI_OK) {
    code = run_subject(s, item);
  }
  close_subject(s);
  return code;
}
