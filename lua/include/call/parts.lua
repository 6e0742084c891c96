--[[ parts: runs work that calls do in addition to their own: ending what ends with a job, yielding names, and removing
jobs from their places. Each part is one file. A part notes its work in lists, which most calls do not need, and has
those of these steps that it needs:

    decide(id, value, job, outcome, fence)
                         called when a job ends. `value` is the job's value of the part's Field; for a job without that
                         field, the part is not called. `job` is its record; nil if it succeeds. `outcome` is succeeded,
                         cancelled, expired or dead, or dies, or nil if another job takes its place or a restore removes
                         it. Returns whether something ends with the job. After a false result, `decide` is not called
                         for lines that begin alike
    check()              called before the first write. Reads what `write` needs, and checks the types of keys that
                         only this part uses
    append(actor)        appends events, before those of the jobs for which the part did its work
    write()              writes, before the script writes

A part is a file whose name is in the list Parts; parts run in the order of the list. A part with a Fact ends with a
job: each script that ends jobs includes it, and calls `decide_parts(id, job, line, outcome, fence)` with the job's
record or its line. The part decides in queues that have the fact. The loader writes `decide_parts` for each script
without a loop, since a loop over the parts costs a job 2,700 instructions. A part without a Fact is included by the
files that use it. A script runs the three steps after `decide`; a check refuses a script that leaves out a step of one
of its parts.

A file names its lists under Lists, and has them in its own table `lists`; no other file reads them.

Parts: id_overdue name_overdue expiry removal names name_requeue name_requests deadline results box_end shown_end parking unqueue death
Kept: filled
]]

local filled = {}   -- the tables of the files that have lists in this call, or had lists in earlier calls…
local count = 0     -- …and the number of those that have lists now

local function reset()
  for i = 1, count do
    local lists = filled[i]
    for name in pairs(lists) do
      lists[name] = nil
    end
  end
  count = 0
end

--- Return a list of a file; the caller may add to it.
local function list_of(lists, name)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
    if not lists.any then
      count = count + 1
      lists.any, filled[count] = true, lists
    end
  end
  return list
end

--- Run a step of all parts that have lists. Returns whether any file has a list.
local function run_parts(step, actor)
  if count == 0 then
    return false
  end
  for i = 1, #PARTS do
    local part = PARTS[i]
    if part.lists.any and part[step] then
      part[step](actor)
    end
  end
  return true
end
