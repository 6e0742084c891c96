--[[ parts: work that calls do in addition to their own, one file for each: what ends with a job, names that are yielded, jobs that leave
their places. A part notes what it is going to do in lists, which most calls do without, and has those of these steps that it needs:

    decide(id, value, job, outcome, fence)
                                      a job ends; `value` is what it has under the part's Field: of a job without that field the part is
                                      not asked. `job` is its record; nil if it succeeds. `outcome` is succeeded, cancelled, expired or
                                      dead, or dies, or nil if another job takes its place or a restore removes it. Returns whether
                                      something ends with it. Lines that begin alike are not decided again after a no
    check()                           before the first write: reads what `write` needs, and checks the types of keys that only it touches
    append(actor)                     appends events, before those of the jobs for whose sake the part did this
    write()                           writes, before the script does

A part is a file whose name is listed under Parts, in the order in which they run. One with a Fact ends with a job: each script that ends
jobs includes it, and calls `decide_parts(id, job, line, outcome, fence)` with the job's record or its line; the part decides in queues
that have the fact. The loader writes `decide_parts` out for each script, since a loop over the parts costs a job 2,700 instructions.
Parts without a Fact come with the files that use them. A script runs the three steps behind `decide`; a check refuses a script that
leaves out a step of one of its parts.

A file names its lists under Lists, and has them in a table `lists` of its own; no other file reads them.

Parts: id_overdue name_overdue expiry removal names name_requeue name_requests deadline results box_end unqueue death
Kept: filled
]]

local filled = {}   -- the tables of the files that have lists in this call, or had in calls before…
local count = 0     -- …and how many have now

local function reset()
  for i = 1, count do
    local lists = filled[i]
    for name in pairs(lists) do
      lists[name] = nil
    end
  end
  count = 0
end

--- A list of a file; more may be added to it.
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

--- Run a step of all parts that have something to do. Returns whether any file has a list.
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
