/* SPDX-License-Identifier: Apache-2.0 */
/* check_workers.c: cases run in worker processes that take indices from shared memory. A worker that dies (a signal, a
 * sanitizer's exit, the watchdog's alarm) fails the case it was in; the parent says so and starts another worker. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check_report.h"
#include "progress.h"

#define WATCHDOG_SECONDS 120u

static void note_failure(check_shared *shared, uint64_t index) {
  atomic_fetch_add(&shared->failed, 1);
  uint64_t first = atomic_load(&shared->first_failed);
  while (index < first && !atomic_compare_exchange_weak(&shared->first_failed, &first, index)) {
  }
}

void check_repeat_line(const check_settings *s, uint64_t index, char *line, size_t bytes) {
  snprintf(line, bytes, "attn check%s --backend %s --seed %llu --case %llu%s%s%s",
           check_stream(s) == CHECK_LATENT_OPS ? " --op latent" : "", s->backend, (unsigned long long)s->seed,
           (unsigned long long)index, s->own_executor ? " --executor own" : "", s->fault != NULL ? " --fault " : "",
           s->fault != NULL ? s->fault : "");
}

/* One line: what differed and the command that repeats it. */
static void print_failure(const check_settings *s, const check_failure *failure) {
  check_case c;
  char repeat[CHECK_FAILURE_BYTES];
  char line[3 * CHECK_FAILURE_BYTES];
  check_case_draw(&c, check_stream(s), s->seed, failure->index);
  check_repeat_line(s, failure->index, repeat, sizeof repeat);
  int bytes = snprintf(line, sizeof line, "FAIL case %llu (%s%s%s): %s   [repeat: %s]\n",
                       (unsigned long long)failure->index, check_value_name(&c.choice, CHECK_OP),
                       failure->backend[0] ? ", " : "", failure->backend, failure->what, repeat);
  size_t length = bytes < (int)sizeof line ? (size_t)bytes : sizeof line - 1;
  progress_erase();
  if (write(STDOUT_FILENO, line, length) < 0) {
    return;
  }
}

/* Keep it for a report in JSON, or say it at once. A planted fault's failure is what was hoped for: not told. */
static void tell_failure(const check_settings *s, check_shared *shared, uint64_t index, const char *backend,
                         const char *what) {
  check_failure failure = {.index = index};
  if (s->fault != NULL) {
    return;
  }
  snprintf(failure.backend, sizeof failure.backend, "%s", backend);
  snprintf(failure.what, sizeof failure.what, "%s", what);
  uint32_t place = atomic_fetch_add(&shared->num_kept, 1);
  if (place < CHECK_MAX_FAILURES) {
    shared->kept[place] = failure;
  }
  if (!s->json && index != CHECK_NO_CASE) {
    print_failure(s, &failure);
  } else if (!s->json) {
    progress_erase();
    fprintf(stdout, "FAIL %s\n", what);
  }
}

int check_wanted(const check_settings *s, const check_case *c) {
  return ((s->ops >> c->op) & 1u) != 0 && check_choice_has(&c->choice, s->with, s->num_with);
}

static void run_indices(const check_settings *s, check_env *env, check_shared *shared, int worker) {
  while (!atomic_load(&shared->stop)) {
    uint64_t index = atomic_fetch_add(&shared->next, 1);
    if (index >= shared->end) {
      break;
    }
    check_case c;
    check_case_draw(&c, check_stream(s), s->seed, index);
    if (!check_wanted(s, &c)) {
      continue;
    }
    atomic_store(&shared->running[worker], index);
    alarm(WATCHDOG_SECONDS);
    if (!check_run_case(env, &c)) {
      tell_failure(s, shared, index, env->backend < env->num_backends ? env->backends[env->backend] : "", env->failure);
      note_failure(shared, index);
      if (s->fault != NULL) {
        atomic_store(&shared->stop, 1);
      }
    }
    memcpy(shared->worst[worker], env->worst, sizeof env->worst);
    atomic_fetch_add(&shared->done, 1);
    atomic_store(&shared->running[worker], UINT64_MAX);
  }
  alarm(0);
}

static pid_t start_worker(const check_settings *s, const check_env *model_env, check_shared *shared, int worker) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    check_env env = *model_env;
    memcpy(env.worst, shared->worst[worker], sizeof env.worst);
    signal(SIGALRM, SIG_DFL);
    run_indices(s, &env, shared, worker);
    check_env_end(&env);
    exit(0);
  }
  return pid;
}

static void describe_end(int status, char *what, size_t bytes) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
    snprintf(what, bytes, "hung for %u seconds", WATCHDOG_SECONDS);
  } else if (WIFSIGNALED(status)) {
    snprintf(what, bytes, "died of signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  } else {
    snprintf(what, bytes, "the process ended with status %d", WEXITSTATUS(status));
  }
}

/* A worker is gone: 1 when it had finished its work. */
static int worker_ended(const check_settings *s, check_shared *shared, int worker, int status) {
  uint64_t index = atomic_load(&shared->running[worker]);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return 1;
  }
  char what[128];
  char line[192];
  describe_end(status, what, sizeof what);
  atomic_store(&shared->running[worker], UINT64_MAX);
  if (index == UINT64_MAX) { /* after its last case: a leak, for instance */
    snprintf(line, sizeof line, "after the last case of worker %d: %s", worker, what);
    tell_failure(s, shared, CHECK_NO_CASE, "", line);
    atomic_fetch_add(&shared->failed, 1);
    return 1;
  }
  tell_failure(s, shared, index, "", what);
  note_failure(shared, index);
  atomic_fetch_add(&shared->done, 1);
  if (s->fault != NULL) {
    atomic_store(&shared->stop, 1);
  }
  return 0;
}

/* Wait for a worker to end; on a terminal, tell how far the run is. */
static pid_t wait_for_one(const check_settings *s, const check_shared *shared, progress *p, int *status) {
  const struct timespec pause = {0, 50000000};
  uint64_t total = s->one_case ? 1 : s->cases;
  pid_t pid = 0;
  while (p->active && (pid = waitpid(-1, status, WNOHANG)) == 0) {
    uint64_t done = atomic_load(&shared->done);
    progress_show(p, "attn check: %llu of %llu cases, %llu failed, %.0f s left", (unsigned long long)done,
                  (unsigned long long)total, (unsigned long long)atomic_load(&shared->failed),
                  progress_left(p, (double)done, (double)total));
    nanosleep(&pause, NULL);
  }
  return p->active ? pid : wait(status);
}

int check_run_workers(const check_settings *s, const check_env *model_env, check_shared *shared) {
  pid_t pids[CHECK_MAX_JOBS];
  int32_t jobs = s->one_case ? 1 : s->jobs;
  int32_t alive = 0;
  progress p;
  progress_start(&p);
  for (int32_t w = 0; w < jobs; w++) {
    atomic_store(&shared->running[w], UINT64_MAX);
    pids[w] = start_worker(s, model_env, shared, w);
    alive += pids[w] > 0;
  }
  while (alive > 0) {
    int status = 0;
    pid_t pid = wait_for_one(s, shared, &p, &status);
    if (pid < 0 && errno != EINTR) {
      break;
    }
    for (int32_t w = 0; w < jobs; w++) {
      if (pid <= 0 || pids[w] != pid) {
        continue;
      }
      pids[w] = -1;
      if (!worker_ended(s, shared, w, status)) {
        pids[w] = start_worker(s, model_env, shared, w);
      }
      alive -= pids[w] <= 0;
    }
  }
  progress_hide(&p);
  return atomic_load(&shared->next) >= shared->end || atomic_load(&shared->stop);
}
