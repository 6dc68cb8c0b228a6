/* SPDX-License-Identifier: Apache-2.0
 *
 * The library for other languages: fifteen functions, in one process. docs/library.md has a program
 * in Python.
 *
 * A function that can fail returns 0, or the exit code that the program millrace would end with
 * (docs/promises.md); one that returns a pointer returns NULL, one that returns a number -1. What
 * went wrong is then in millrace_last_error(). Names and paths are UTF-8. One training, or one
 * classifier, may be used by one thread at a time; different ones by different threads. */
#ifndef MILLRACE_H
#define MILLRACE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "0.2.0" */
const char* millrace_version(void);
/* What went wrong in the last function of this thread that failed: one line, which the next failure
 * replaces; "" if none did. */
const char* millrace_last_error(void);

/* What the network made of some images. */
typedef struct millrace_score {
  double loss;     /* mean */
  double accuracy; /* share of images whose class has the largest logit */
  int64_t images;
  int32_t skipped; /* 1: a gradient was not finite, and no weight has changed */
} millrace_score;

typedef struct millrace_training millrace_training;
/* A training of the network, on the images and with the rates that `toml` says, which is the text of
 * a configuration file (configs/README.md). It writes nothing but what is saved. */
millrace_training* millrace_create(const char* toml, int threads);
void millrace_destroy(millrace_training* training);
/* One weight update. The score is that of the weights before it. */
int millrace_step(millrace_training* training, millrace_score* score);
/* The score of all validation images. */
int millrace_evaluate(millrace_training* training, millrace_score* score);
/* Writes the checkpoint `directory`/ckpt-<updates>. Returns its path, which lives until the next
 * call. */
const char* millrace_save(millrace_training* training, const char* directory);
/* Continues from a checkpoint of the same network, bit for bit. */
int millrace_load(millrace_training* training, const char* checkpoint);
/* Copies the parameter of that name to `values`, if `count` is its number of elements. Returns that
 * number, whatever `count` is. */
int64_t millrace_get(millrace_training* training, const char* name, float* values, int64_t count);
/* Replaces it by `count` values, which must be as many as it has. */
int millrace_set(millrace_training* training, const char* name, const float* values, int64_t count);

typedef struct millrace_classifier millrace_classifier;
/* The network of a checkpoint, or of the newest one of a run. */
millrace_classifier* millrace_open(const char* checkpoint_or_run, int threads);
void millrace_close(millrace_classifier* classifier);
/* Height, width and channels of the images that it reads, and its number of classes. */
int millrace_shape(millrace_classifier* classifier, int64_t shape[4]);
/* The logits, `count` x classes, of images as the network reads them: `count` x height x width x
 * channels floats, normalized. */
int millrace_predict(millrace_classifier* classifier, const float* images, int64_t count,
                     float* logits);
/* The logits of a JPEG or PNG file, prepared as a validation prepares images. */
int millrace_predict_file(millrace_classifier* classifier, const char* path, float* logits);

#ifdef __cplusplus
}
#endif

#endif
