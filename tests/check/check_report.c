/* SPDX-License-Identifier: Apache-2.0 */
/* check_report.c: one run from its settings to its last line; planted faults one after the other. */
#define _DEFAULT_SOURCE
#include "check_report.h"

#include "check.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/fault.h"

int32_t check_default_jobs(void) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  return processors < 1 ? 1 : processors > CHECK_MAX_JOBS ? CHECK_MAX_JOBS : (int32_t)processors;
}

/* What the caches of the cases hold. */
static unsigned rows_of(const check_settings *s) {
  return check_stream(s) == CHECK_LATENT_OPS ? (unsigned)ATTN_ROWS_LATENT : (unsigned)ATTN_ROWS_KV;
}

/* The backends under test: those that are built, or the one named. 0: the name is not one of them. */
static int choose_backends(const check_settings *s, check_env *env) {
  attn_backend_info info;
  for (size_t i = 0; attn_backend_get(i, &info); i++) {
    int named = strcmp(s->backend, "all") == 0 || strcmp(s->backend, info.name) == 0;
    /* A fault is planted anywhere but in the specification. */
    int spared = s->fault != NULL && strcmp(s->backend, "all") == 0 && strcmp(info.name, "REFERENCE") == 0;
    if (((unsigned)info.rows & rows_of(s)) != 0 && named && !spared && env->num_backends < CHECK_MAX_BACKENDS) {
      env->backends[env->num_backends++] = info.name;
    }
  }
  return env->num_backends;
}

static void print_accepted(const check_settings *s) {
  attn_backend_info info;
  fprintf(stderr, "attn check: --backend '%s' is not built here (accepted: all", s->backend);
  for (size_t i = 0; attn_backend_get(i, &info); i++) {
    if (((unsigned)info.rows & rows_of(s)) != 0) {
      fprintf(stderr, ", %s", info.name);
    }
  }
  fputs(")\n", stderr);
}

/* Indices drawn in search of the cases asked for, at most, for each of them. */
#define MOST_DRAWS 20000u

/* One past the last index, so that as many cases are run as were asked for. 0: such cases hardly occur. */
static uint64_t end_of_cases(const check_settings *s) {
  uint64_t end = s->one_case ? s->only + 1 : s->cases;
  if (!s->one_case && ((s->ops & check_stream(s)) != check_stream(s) || s->num_with > 0)) {
    uint64_t found = 0;
    check_case c;
    for (end = 0; found < s->cases; end++) {
      if (end / MOST_DRAWS > found) {
        return 0;
      }
      check_case_draw(&c, check_stream(s), s->seed, end);
      found += (uint64_t)check_wanted(s, &c);
    }
  }
  return end;
}

static void start_shared(const check_settings *s, check_shared *shared) {
  uint64_t end = shared->end;
  memset((void *)shared, 0, sizeof *shared);
  atomic_store(&shared->first_failed, UINT64_MAX);
  atomic_store(&shared->next, s->one_case ? s->only : 0);
  shared->end = end;
}

static int print_pairs(const check_settings *s, const check_shared *shared, json_writer *w) {
  check_pairs *pairs = check_pairs_new();
  if (pairs == NULL) {
    fputs("attn check: out of memory\n", stderr);
    return 0;
  }
  check_case c;
  for (uint64_t index = 0; index < shared->end; index++) {
    check_case_draw(&c, check_stream(s), s->seed, index);
    if (check_wanted(s, &c)) {
      check_pairs_add(pairs, &c.choice);
    }
  }
  check_pairs_print(pairs, check_stream(s), s->pairs, w);
  check_pairs_free(pairs);
  return 1;
}

static double larger(double a, double b) {
  return a > b ? a : b;
}

/* Of all workers. */
static check_worst worst_of(const check_settings *s, const check_shared *shared, int backend) {
  check_worst worst = {0.0, 0.0, 0.0, 0.0, 0.0};
  for (int32_t w = 0; w < s->jobs; w++) {
    const check_worst *one = &shared->worst[w][backend];
    worst.out = larger(worst.out, one->out);
    worst.fp8 = larger(worst.fp8, one->fp8);
    worst.lse = larger(worst.lse, one->lse);
    worst.merge_out = larger(worst.merge_out, one->merge_out);
    worst.merge_lse = larger(worst.merge_lse, one->merge_lse);
  }
  return worst;
}

static void print_worst(const check_settings *s, const check_env *env, const check_shared *shared) {
  for (int b = 0; b < env->num_backends; b++) {
    check_worst worst = worst_of(s, shared, b);
    printf("%-12s worst fraction of the bounds: attention out %.3f, fp8 out %.3f, lse %.3f; merge out %.3f, lse %.3f\n",
           env->backends[b], worst.out, worst.fp8, worst.lse, worst.merge_out, worst.merge_lse);
  }
}

static void write_backends(const check_settings *s, const check_env *env, const check_shared *shared, json_writer *w) {
  json_array(w, "backends");
  for (int b = 0; b < env->num_backends; b++) {
    check_worst worst = worst_of(s, shared, b);
    json_line(w);
    json_object(w, NULL);
    json_string(w, "name", env->backends[b]);
    json_number(w, "worst_out", worst.out, 6);
    json_number(w, "worst_fp8_out", worst.fp8, 6);
    json_number(w, "worst_lse", worst.lse, 6);
    json_number(w, "worst_merge_out", worst.merge_out, 6);
    json_number(w, "worst_merge_lse", worst.merge_lse, 6);
    json_end(w);
  }
  json_end(w);
}

static void write_failures(const check_settings *s, const check_shared *shared, json_writer *w) {
  uint32_t kept = atomic_load(&shared->num_kept);
  json_array(w, "failures");
  for (uint32_t i = 0; i < kept && i < CHECK_MAX_FAILURES; i++) {
    const check_failure *failure = &shared->kept[i];
    char repeat[CHECK_FAILURE_BYTES];
    check_repeat_line(s, failure->index, repeat, sizeof repeat);
    json_line(w);
    json_object(w, NULL);
    json_string(w, "backend", failure->backend[0] != '\0' ? failure->backend : NULL);
    json_string(w, "what", failure->what);
    json_string(w, "repeat", failure->index == CHECK_NO_CASE ? NULL : repeat);
    json_end(w);
  }
  json_end(w);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What a single case is, for whoever repeats a failure. */
static void print_case(const check_settings *s) {
  check_case c;
  check_case_draw(&c, check_stream(s), s->seed, s->only);
  check_print_choice(&c.choice, stdout);
  printf("q heads %d, KV heads %d, sizes %d and %d, block size %d, tokens %lld; q_len:kv_len", (int)c.q_heads,
         (int)c.kv_heads, (int)c.size, (int)c.v_size, (int)c.block_size, (long long)c.tokens);
  for (int32_t i = 0; i < c.num_seqs; i++) {
    printf(" %d:%d", (int)c.seqs[i].q_len, (int)c.seqs[i].kv_len);
  }
  putchar('\n');
}

/* The whole run as one object; 0 without memory. */
static int print_json(const check_settings *s, const check_env *env, const check_shared *shared, int complete,
                      double spent) {
  json_writer w;
  json_start(&w, stdout);
  json_object(&w, NULL);
  json_unsigned(&w, "cases", atomic_load(&shared->done));
  json_unsigned(&w, "seed", s->seed);
  json_unsigned(&w, "failed", atomic_load(&shared->failed));
  json_boolean(&w, "complete", complete);
  json_number(&w, "seconds", spent, 4);
  write_backends(s, env, shared, &w);
  int written = s->one_case || print_pairs(s, shared, &w);
  write_failures(s, shared, &w);
  json_finish(&w);
  return written;
}

static int print_text(const check_settings *s, const check_env *env, const check_shared *shared, int complete,
                      double spent) {
  if (!s->quiet) {
    if (!s->one_case && !print_pairs(s, shared, NULL)) {
      return 0;
    }
    print_worst(s, env, shared);
  }
  printf("attn check: %llu cases, seed %llu, %llu failed, %.1f s%s\n", (unsigned long long)atomic_load(&shared->done),
         (unsigned long long)s->seed, (unsigned long long)atomic_load(&shared->failed), spent,
         complete ? "" : "; not all cases could be run");
  return 1;
}

static int run_cases(const check_settings *s, check_env *env, check_shared *shared) {
  double start = seconds();
  start_shared(s, shared);
  if (s->one_case && !s->quiet && !s->json) {
    print_case(s);
  }
  int complete = check_run_workers(s, env, shared);
  int printed = (s->json ? print_json : print_text)(s, env, shared, complete, seconds() - start);
  return printed && complete && atomic_load(&shared->failed) == 0 ? 0 : 1;
}

#if defined(ATTN_TEST_FAULTS) && ATTN_TEST_FAULTS

typedef struct fault_row {
  int id;
  const char *name;
  const char *what;
} fault_row;

#define FAULT_ROW(name, spelling, what) {name, spelling, what},
static const fault_row faults[] = {ATTN_FAULT_LIST(FAULT_ROW) ATTN_FAULT_LATENT_LIST(FAULT_ROW)};
static const fault_row latent_faults[] = {ATTN_FAULT_LATENT_LIST(FAULT_ROW)};
#undef FAULT_ROW
static const size_t num_faults = sizeof faults / sizeof *faults;
static const size_t num_latent_faults = sizeof latent_faults / sizeof *latent_faults;

int attn_check_plant(const char *name) {
  for (size_t i = 0; i < num_faults; i++) {
    if (strcmp(faults[i].name, name) == 0) {
      attn_fault_set(faults[i].id);
      return 1;
    }
  }
  return 0;
}

/* Activate one fault and run until a case fails. */
static int run_fault(const check_settings *s, check_env *env, check_shared *shared, const fault_row *fault) {
  double start = seconds();
  attn_fault_set(fault->id);
  start_shared(s, shared);
  check_run_workers(s, env, shared);
  attn_fault_set(ATTN_FAULT_NONE);
  uint64_t first = atomic_load(&shared->first_failed);
  if (first == UINT64_MAX) {
    printf("fault %-18s NOT caught in %llu cases (%s)\n", fault->name, (unsigned long long)s->cases, fault->what);
    return 0;
  }
  printf("fault %-18s caught after %llu cases, %.1f s\n", fault->name, (unsigned long long)first + 1,
         seconds() - start);
  return 1;
}

static int run_faults(const check_settings *s, check_env *env, check_shared *shared) {
  size_t chosen = 0;
  size_t caught = 0;
  int list = strcmp(s->fault, "list") == 0;
  int all = strcmp(s->fault, "all") == 0;
  int latent = check_stream(s) == CHECK_LATENT_OPS;
  for (size_t i = 0; i < num_faults; i++) {
    int is_latent = i >= num_faults - num_latent_faults; /* only cases over latent rows show it */
    if (list) {
      printf("%-18s %s\n", faults[i].name, faults[i].what);
    } else if (all ? is_latent == latent : strcmp(s->fault, faults[i].name) == 0) {
      chosen++;
      caught += (size_t)run_fault(s, env, shared, &faults[i]);
    }
  }
  if (list) {
    return 0;
  }
  if (chosen == 0) {
    fprintf(stderr, "attn check: --fault '%s' is not known (attn-faulty check --fault list prints the faults)\n",
            s->fault);
    return 2;
  }
  printf("attn check: %zu of %zu planted faults caught\n", caught, chosen);
  return caught == chosen ? 0 : 1;
}

#else

int attn_check_plant(const char *name) {
  (void)name;
  return 0;
}

static int run_faults(const check_settings *s, check_env *env, check_shared *shared) {
  (void)env;
  (void)shared;
  fprintf(stderr, "attn check: --fault '%s' needs the test-only build with planted faults (attn-faulty)\n", s->fault);
  return 2;
}

#endif

int check_execute(const check_settings *s) {
  check_env env;
  memset(&env, 0, sizeof env);
  env.max_threads = s->threads;
  env.own_executor = s->own_executor;
  if (choose_backends(s, &env) == 0) {
    print_accepted(s);
    return 2;
  }
  uint64_t end = end_of_cases(s);
  if (end == 0) {
    fputs(
        "attn check: --with and --op together hardly ever occur; accepted: values of one operation that do not exclude "
        "each other (attn check --list-options)\n",
        stderr);
    return 2;
  }
  check_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    fputs("attn check: out of memory\n", stderr);
    return 1;
  }
  shared->end = end;
  int status = s->fault != NULL ? run_faults(s, &env, shared) : run_cases(s, &env, shared);
  munmap(shared, sizeof *shared);
  return status;
}
