/* SPDX-License-Identifier: Apache-2.0 */
/* What `attn bench` prints: an aligned table, CSV, or (w) one JSON object. */
#include <string.h>

#include "bench.h"

static const char *bound_name(int bound) {
  return bound == BENCH_BOUND_MEMORY ? "memory" : "arithmetic";
}

/* A time in the unit that suits it. */
static void spell_seconds(double seconds, char *text, size_t bytes) {
  if (seconds < 1e-3) {
    snprintf(text, bytes, "%.1f us", seconds * 1e6);
  } else if (seconds < 1.0) {
    snprintf(text, bytes, "%.2f ms", seconds * 1e3);
  } else {
    snprintf(text, bytes, "%.2f s", seconds);
  }
}

static double bytes_per_second(const bench_item *r) {
  return (r->work.read_bytes + r->work.written_bytes) / r->figures.seconds.best;
}

/* ---- Text -------------------------------------------------------------------------------------------------------- */

static void print_text_head(const bench_session *s) {
  printf("attn %s on %s: level %s, %d thread%s, %s\n\n", attn_version(), s->device.device_name, s->device.level,
         (int)s->device.num_threads, s->device.num_threads > 1 ? "s" : "",
         s->device.num_threads > 1 ? "timed by the clock" : "timed by the thread's own seconds");
  printf("%-44s %-10s %10s %8s %8s %-10s %8s\n", "case", "backend", "time", "GB/s", "GFLOP/s", "bound", "fraction");
}

static void print_text_row(const bench_item *r) {
  char time[24];
  char flops[16] = "-";
  if (r->refusal != NULL) {
    printf("%-44s %-10s refused: %s\n", r->name, r->wanted != NULL ? r->wanted : "auto", r->refusal);
    return;
  }
  spell_seconds(r->figures.seconds.best, time, sizeof(time));
  if (r->work.flops > 0.0) {
    snprintf(flops, sizeof(flops), "%.2f", r->work.flops / r->figures.seconds.best * 1e-9);
  }
  printf("%-44s %-10s %10s %8.2f %8s %-10s %8.3f\n", r->name, r->backend, time, bytes_per_second(r) * 1e-9, flops,
         bound_name(r->figures.bound), r->figures.fraction);
}

/* The rates over the run. */
typedef struct machine_limits {
  bench_spread arithmetic;
  bench_spread read;
  bench_spread copy;
} machine_limits;

static machine_limits limits_of(bench_session *s) {
  return (machine_limits){bench_spread_of(s->arithmetic, (int)s->num_items, 1),
                          bench_spread_of(s->memory_read, s->sittings, 1),
                          bench_spread_of(s->memory_copy, s->sittings, 1)};
}

static void print_text_end(bench_session *s) {
  machine_limits m = limits_of(s);
  printf(
      "\nlimits, best (and median) of the run: multiply-add %.2f GFLOP/s (%.2f); from memory: read %.2f GB/s "
      "(%.2f), "
      "copy\n%.2f GB/s read and written (%.2f). fraction: the least time that the limits around a case allow, over as "
      "many\nbytes, divided by the time of a call, both at their best round; bound: the limit that decides.\n",
      m.arithmetic.best * 1e-9, m.arithmetic.median * 1e-9, m.read.best * 1e-9, m.read.median * 1e-9,
      m.copy.best * 1e-9, m.copy.median * 1e-9);
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void print_quoted(const char *text) {
  putchar('"');
  for (; *text != '\0'; ++text) {
    if (*text == '"') {
      putchar('"');
    }
    putchar(*text);
  }
  putchar('"');
}

static void print_csv_head(void) {
  puts("case,op,backend,seconds_best,seconds_median,seconds_worst,rounds,calls,splits,read_bytes,written_bytes,flops,"
       "gb_per_second,gflop_per_second,limit_gflop_per_second,limit_read_gb_per_second,limit_copy_gb_per_second,bound,"
       "limit_seconds,fraction,fraction_median,problem,refused");
}

static void print_csv_row(const bench_item *r) {
  const bench_figures *f = &r->figures;
  print_quoted(r->name);
  if (r->refusal != NULL) {
    printf(",,%s,,,,,,,,,,,,,,,,,,,", r->wanted != NULL ? r->wanted : "auto");
    print_quoted(r->words);
    putchar(',');
    print_quoted(r->refusal);
    putchar('\n');
    return;
  }
  printf(",%s,%s,%.6g,%.6g,%.6g,%d,%d,%d,%.0f,%.0f,%.0f,%.6g,%.6g,%.6g,%.6g,", r->op, r->backend, f->seconds.best,
         f->seconds.median, f->seconds.worst, f->rounds, f->calls, (int)r->splits, r->work.read_bytes,
         r->work.written_bytes, r->work.flops, bytes_per_second(r) * 1e-9, r->work.flops / f->seconds.best * 1e-9,
         f->arithmetic.best * 1e-9, f->read.best * 1e-9);
  if (f->copy.best > 0.0) {
    printf("%.6g", f->copy.best * 1e-9);
  }
  printf(",%s,%.6g,%.6g,%.6g,", bound_name(f->bound), f->limit_seconds, f->fraction, f->fraction_median);
  print_quoted(r->words);
  puts(",");
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void write_spread(json_writer *w, const char *key, const bench_spread *spread, double unit) {
  json_object(w, key);
  json_number(w, "best", spread->best * unit, 6);
  json_number(w, "median", spread->median * unit, 6);
  json_number(w, "worst", spread->worst * unit, 6);
  json_end(w);
}

static void write_head(const bench_session *s, json_writer *w) {
  json_start(w, stdout);
  json_object(w, NULL);
  json_object(w, "machine");
  cli_write_device(&s->device, w);
  json_end(w);
  json_line(w);
  json_string(w, "timed_by", s->device.num_threads > 1 ? "clock" : "thread");
  json_integer(w, "seed", s->flags->seed);
  json_array(w, "results");
}

static void write_figures(const bench_item *r, json_writer *w) {
  const bench_figures *f = &r->figures;
  json_number(w, "fraction", f->fraction, 6);
  json_number(w, "fraction_median", f->fraction_median, 6);
  json_string(w, "bound", bound_name(f->bound));
  json_number(w, "limit_seconds", f->limit_seconds, 6);
  write_spread(w, "seconds", &f->seconds, 1.0);
  json_integer(w, "rounds", f->rounds);
  json_integer(w, "calls", f->calls);
  json_integer(w, "splits", r->splits);
  json_number(w, "read_bytes", r->work.read_bytes, 15);
  json_number(w, "written_bytes", r->work.written_bytes, 15);
  json_number(w, "flops", r->work.flops, 15);
  json_number(w, "gb_per_second", bytes_per_second(r) * 1e-9, 6);
  json_number(w, "gflop_per_second", r->work.flops / f->seconds.best * 1e-9, 6);
  json_object(w, "limits");
  write_spread(w, "gflop_per_second", &f->arithmetic, 1e-9);
  write_spread(w, "read_gb_per_second", &f->read, 1e-9);
  if (f->copy.best > 0.0) {
    write_spread(w, "copy_gb_per_second", &f->copy, 1e-9);
  }
  json_end(w);
}

static void write_item(const bench_item *r, json_writer *w) {
  json_line(w);
  json_object(w, NULL);
  json_string(w, "case", r->name);
  json_string(w, "problem", r->words);
  if (r->refusal != NULL) {
    json_string(w, "backend", r->wanted != NULL ? r->wanted : "auto");
    json_string(w, "refused", r->refusal);
  } else {
    json_string(w, "op", r->op);
    json_string(w, "backend", r->backend);
    write_figures(r, w);
  }
  json_end(w);
}

static void write_end(bench_session *s, json_writer *w) {
  machine_limits m = limits_of(s);
  json_end(w);
  json_line(w);
  json_object(w, "limits");
  write_spread(w, "gflop_per_second", &m.arithmetic, 1e-9);
  json_unsigned(w, "memory_bytes", bench_memory_bytes(s->memory));
  write_spread(w, "read_gb_per_second", &m.read, 1e-9);
  write_spread(w, "copy_gb_per_second", &m.copy, 1e-9);
  json_finish(w);
}

/* ---- The three --------------------------------------------------------------------------------------------------- */

void bench_print_head(const bench_session *session, json_writer *w) {
  if (session->flags->json) {
    write_head(session, w);
  } else if (session->flags->csv) {
    print_csv_head();
  } else {
    print_text_head(session);
  }
}

void bench_print_item(const bench_session *session, const bench_item *item, json_writer *w) {
  if (session->flags->json) {
    write_item(item, w);
  } else if (session->flags->csv) {
    print_csv_row(item);
  } else {
    print_text_row(item);
  }
}

void bench_print_end(bench_session *session, json_writer *w) {
  if (session->flags->json) {
    write_end(session, w);
  } else if (!session->flags->csv) {
    print_text_end(session);
  }
}
