/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.h: inside `attn run`. Each operation takes a checked request and fills a run_result, which is then written as the
 * output file. Tensors reach the library as run_views: plain views of the file's memory or, with --poison, copies with
 * padded strides in memory full of NaN, into which only what the call owns was copied (run_view.c; run_owned.c decides
 * what that is).
 */
#ifndef ATTN_TOOL_RUN_H
#define ATTN_TOOL_RUN_H

#include "request.h"

/* What a call answers. Tensors with `owned` set are freed with it. */
enum { RUN_MAX_TENSORS = 7 };
typedef struct run_result {
  st_tensor tensors[RUN_MAX_TENSORS];
  size_t num_tensors;
  char backend[32];
  char reason[ATTN_REASON_BYTES];
  int32_t splits;
  uint64_t workspace_bytes;
} run_result;

/* What an operation works with. */
typedef struct run_job {
  attn_context *context;
  const cli_options *flags;
  const request *request;
  run_result *result;
  cli_report *report;
} run_job;

/* An operation in its steps. `open` makes everything that the call needs, outputs included; *call is then closed, also
   after a failure (unless it is NULL). `compute` is the library's call alone and may be repeated. `collect` brings
   padded copies back into the result. */
typedef struct run_steps {
  request_op op;
  int (*open)(const run_job *job, void **call);
  int (*compute)(const run_job *job, void *call);
  void (*collect)(const run_job *job, void *call);
  void (*close)(void *call);
} run_steps;

extern const run_steps run_attention;
extern const run_steps run_cache_write;
extern const run_steps run_cache_gather;
extern const run_steps run_merge;
extern const run_steps run_mla_mqa;
extern const run_steps run_mla_mha;
extern const run_steps run_mla_layer;
extern const run_steps run_latent_write;
extern const run_steps run_latent_gather;

/* The steps of a request's operation, which has to be one that is built. */
const run_steps *run_steps_of(const request *parsed);

/* Free the tensors of a result. */
void run_result_free(run_result *result);

/* The command once its flags are read: from the input file to the output file. */
int run_request_file(const cli_options *flags, cli_report *report);

/* Add an output of the result: all zeros, with --poison all NaN. */
int run_add_output(const run_job *job, const char *name, attn_dtype dtype, int32_t rank, const int64_t *shape,
                   st_tensor **tensor);
/* Add a tensor of the request as it is now. */
void run_add_input(const run_job *job, const st_tensor *tensor);
/* Name the backend of a call that has no plan; reason has ATTN_REASON_BYTES. */
int run_name_backend(const attn_context *context, const cli_options *flags, char *name, size_t name_bytes, char *reason,
                     cli_report *report);

/* ---- Views ------------------------------------------------------------------------------------------------------- */

typedef struct run_view {
  DLTensor view;
  int64_t shape[ST_MAX_RANK];
  int64_t strides[ST_MAX_RANK];
  unsigned char *memory;  /* the padded copy; NULL for a plain view */
  const DLTensor *tensor; /* &view, or NULL for a tensor that is not given */
} run_view;

/* Plan a problem of the request, note the plan in the result and allocate its workspace; *plan and workspace->data are
   the caller's, after a failure too. */
int run_make_plan(const run_job *job, const attn_problem *problem, attn_plan **plan, attn_workspace *workspace);
/* Schedule the request's batch; `tensors` are the views of all tensors. */
int run_schedule(const run_job *job, const attn_plan *plan, const attn_workspace *workspace, const run_view *tensors);
/* Rows that a gather gives; what makes them is checked here, before memory is asked for. */
int run_count_rows(const run_job *job, int64_t *rows);

/* How many leading elements of the innermost row at `index` (all axes but the last; none for one axis) a call owns. */
typedef int64_t (*run_owned)(const void *context, const int64_t *index);

/* View a tensor (NULL: none). With `poison` as a padded copy of what `owned` grants, of everything where it is NULL. */
int run_view_open(run_view *view, const st_tensor *tensor, int poison, run_owned owned, const void *context,
                  cli_report *report);
/* An output: with `poison` padded memory full of NaN. */
int run_view_output(run_view *view, const st_tensor *tensor, int poison, cli_report *report);
/* Copy the rows whose first index is below `rows` from the padded copy to the tensor; a plain view has them there. */
void run_view_collect(const run_view *view, st_tensor *tensor, int64_t rows);
/* Copy one innermost row likewise. */
void run_view_collect_row(const run_view *view, st_tensor *tensor, const int64_t *index);
void run_view_close(run_view *view);

/* ---- Ownership --------------------------------------------------------------------------------------------------- */

/* What an attention or gather call owns, from its lists. Lists that are wrong own less; the library refuses them. */
typedef struct run_ownership {
  const request *request;
  const attn_problem *problem; /* attention */
  unsigned char *slots;        /* [blocks * block_size], or [kv tokens] without a cache: 1 where some row may look */
  int64_t num_slots;
} run_ownership;

int run_own_attention(const request *parsed, const attn_problem *problem, run_ownership *owned, cli_report *report);
int run_own_gather(const request *parsed, run_ownership *owned, cli_report *report);
void run_own_free(run_ownership *owned);

/* What an attention call has to look at, from its lists, which have to be valid. */
typedef struct run_work {
  int64_t pairs; /* of a row and a key that it sees, of one query head */
  int64_t keys;  /* that some row of their sequence sees, of all sequences */
} run_work;

run_work run_count_attention(const request *parsed, const attn_problem *problem);

/* run_owned functions; context is a run_ownership. */
int64_t run_owns_pool(const void *context, const int64_t *index);
int64_t run_owns_query(const void *context, const int64_t *index);
int64_t run_owns_new_row(const void *context, const int64_t *index);
int64_t run_owns_direct_row(const void *context, const int64_t *index);
int64_t run_owns_table(const void *context, const int64_t *index);
int64_t run_owns_bias(const void *context, const int64_t *index);
/* Owns nothing. */
int64_t run_owns_none(const void *context, const int64_t *index);

/* Scales of K (is_v 0) or V: separate ones as padded copies of those whose slot the call owns (`owned` NULL: none),
   static ones whole. */
int run_view_scales(run_view *view, const request *parsed, int is_v, int poison, const run_ownership *owned,
                    cli_report *report);

/* After a write: the pools under their own names, and their separate scales, with the slots that slot_mapping names
   from the padded copies. `views` are those of all tensors. */
void run_collect_written(const run_job *job, const run_view *views);

#endif
